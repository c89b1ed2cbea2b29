"""Server optimizers, whose gradient is the aggregate's difference from the model.

FedAvgM is of Hsu et al. 2019 (arXiv:1909.06335); FedAdagrad, FedAdam and FedYogi are algorithm 2 of
Reddi et al. 2021 (arXiv:2003.00295). As there, none corrects a bias of its first rounds. Nesterov's
momentum is the outer optimizer of DiLoCo (Douillard et al. 2023, arXiv:2311.08105), in the form of
``torch.optim.SGD(nesterov=True)``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from flstream.aggregation.elements import SMALL_BLOCK, Array, blocks
from flstream.aggregation.fold_rule import ServerStep
from flstream.aggregation.regions import Region, SideLayout
from flstream.aggregation.rules import AggregationRule
from flstream.errors import CheckpointError
from flstream.job.aggregation_section import ServerOptimizerSection
from flstream.model.dtypes import FLOATS, load, numbers_in, store
from flstream.model.layout import Layout
from flstream.model.source import Scratch, Sink, Source, view_of

OptimizerType = Literal["fedavgm", "nesterov", "fedadagrad", "fedadam", "fedyogi"]


@dataclass(frozen=True)
class ServerOptimizer(ServerStep):
    """An optimizer that moves the model along the aggregate's difference from it."""

    type: OptimizerType  # name of the algorithm
    learning_rate: float  # server learning rate, eta in the papers
    beta_1: float  # share of the momentum kept in a round, from 0 to below 1
    # Share of the second moment kept in a round, from 0 to below 1; FedAdagrad keeps all.
    beta_2: float = 0.99
    tau: float = 0.001  # degree of adaptivity, above 0: the smaller, the more adaptive
    begins: bool = False  # see ServerStep

    @property
    def name(self) -> str:
        """Name of the algorithm."""
        return self.type

    @property
    def moments(self) -> Sequence[str]:  # type: ignore[override]
        """Names of the values that are kept for each number from round to round."""
        momentum = ("momentum",) if self.beta_1 else ()
        return (*momentum, "second_moment") if self._is_adaptive else momentum

    @property
    def _is_adaptive(self) -> bool:
        return self.type not in ("fedavgm", "nesterov")

    def initial(self, moment: str) -> float:
        """Return the value of a moment before the first round."""
        return 0.0 if moment == "momentum" else self.tau**2

    def step(self, difference: Array, moments: dict[str, Array], updates: int = 1) -> Array:
        """Make a step; see :class:`ServerStep`."""
        if self._is_adaptive:
            difference *= 1 - self.beta_1
        momentum = difference
        if "momentum" in moments:
            momentum = moments["momentum"]
            momentum *= self.beta_1
            momentum += difference
        if self.type == "fedavgm":
            return self.learning_rate * momentum
        if self.type == "nesterov":
            return self.learning_rate * (difference + self.beta_1 * momentum)
        second = moments["second_moment"]
        square = momentum * momentum
        if self.type == "fedadagrad":
            second += square
        elif self.type == "fedadam":
            second *= self.beta_2
            second += (1 - self.beta_2) * square
        else:
            second -= (1 - self.beta_2) * square * np.sign(second - square)
        step: Array = self.learning_rate * momentum / (np.sqrt(second) + self.tau)
        return step


def nesterov(learning_rate: float, momentum: float) -> ServerOptimizer | None:
    """Make DiLoCo's outer optimizer; None where its step is the aggregate itself.

    That is so with a learning rate of 1 and no momentum: the next model then has the aggregate's
    bits, which a difference in float64 that is added again need not have.

    Args:
        learning_rate: Server learning rate, above 0.
        momentum: Share of the momentum kept in a round, from 0 to below 1.
    """
    if learning_rate == 1 and momentum == 0:
        return None
    return ServerOptimizer("nesterov", learning_rate, momentum)


def optimizer_for(section: ServerOptimizerSection) -> ServerOptimizer | None:
    """Make a job's server optimizer; None where the aggregate is the next model."""
    if section.type == "none":
        return None
    optimizer = ServerOptimizer(section.type, **section.args.model_dump())
    if optimizer.type == "nesterov":
        return nesterov(optimizer.learning_rate, optimizer.beta_1)
    return optimizer


def state_layout(moments: Sequence[str], model: Layout, rule: AggregationRule) -> Layout:
    """Return the layout of a step's state, for the floats that a rule aggregates."""
    return _side_layout(moments, model, rule.selected(model)).layout


def _side_layout(moments: Sequence[str], model: Layout, selected: Collection[str]) -> SideLayout:
    """Return the places of the state: of F64 and C64 in their own type, else in F32."""
    floats = [s for s in model.tensors if s.name in selected and s.dtype in FLOATS]
    kept_as = {"F64": "F64", "C64": "C64"}
    return SideLayout(model, ((m, s, kept_as.get(s.dtype, "F32")) for m in moments for s in floats))


class Optimization(NamedTuple):
    """A server's step and its state in one round.

    Attributes:
        optimizer: The step.
        state_in: State after the round before; None in the first round.
        state_out: Sink of the state after this round. As with the model, the caller makes it
            durable.
        The state of each round is a file of its own, so that a repeated round starts from the one
        before.
    """

    optimizer: ServerStep
    state_in: Source | None
    state_out: Sink


class OptimizerWalk:
    """The steps of an optimizer on one model, block by block."""

    def __init__(
        self, optimization: Optimization, model: Layout, selected: Collection[str], updates: int
    ) -> None:
        self._updates = updates
        self._optimizer, self._in, self._out = optimization
        self._side_layout = _side_layout(self._optimizer.moments, model, selected)
        self._scratch = Scratch()
        if self._in is not None:
            difference = self._side_layout.layout.difference(self._in.layout)
            if difference:
                raise CheckpointError(
                    f"the state of the server optimizer {self._optimizer.name} does not fit the "
                    f"job: {difference}; go on with the round's own, or start a new run"
                )

    def advance(self, region: Region, part: slice, values: Array, old: Array) -> None:
        """Turn a block of the aggregate into one of the next model.

        The block has at most ``SMALL_BLOCK`` numbers of a region of floats, in float64: those of
        the aggregate, which are overwritten, and the ``old`` ones of the model.
        """
        numbers = part.stop - part.start
        places = {m: self._side_layout.place(m, region, part) for m in self._optimizer.moments}
        moments = {m: self._read(m, place, numbers) for m, place in places.items()}
        np.subtract(values, old, out=values)
        np.add(old, self._optimizer.step(values, moments, self._updates), out=values)
        for moment, after in moments.items():
            self._write(places[moment], after)

    def keep(self, region: Region) -> None:
        """Copy the state of a region of floats unchanged."""
        for part in blocks(region.numbers, SMALL_BLOCK):
            for moment in self._optimizer.moments:
                place = self._side_layout.place(moment, region, part)
                self._write(place, self._read(moment, place, part.stop - part.start))

    def _read(self, moment: str, place: tuple[str, int, int], numbers: int) -> Array:
        block = np.full(numbers, self._optimizer.initial(moment))
        if self._in is not None:
            dtype, start, stop = place
            data = view_of(self._in, start, stop, self._scratch)
            load(numbers_in(dtype, data), block)
        return block

    def _write(self, place: tuple[str, int, int], block: Array) -> None:
        dtype, start, stop = place
        (out,) = self._out.views(start, stop)
        store(block, numbers_in(dtype, out))
        self._out.commit(start, stop)
