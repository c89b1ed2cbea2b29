"""Server optimisers: the aggregate's difference from the model, taken as a gradient.

FedAvgM is of Hsu et al. 2019 (arXiv:1909.06335); FedAdagrad, FedAdam and FedYogi are algorithm 2
of Reddi et al. 2021 (arXiv:2003.00295). None corrects a bias of its first rounds, as there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from flstream.aggregation.companion import Beside, Companion, Place
from flstream.aggregation.elements import FLOATS, SMALL_BLOCK, Array, Elements, blocks
from flstream.aggregation.rules import Rule
from flstream.aggregation.updates import join
from flstream.aggregation.zones import Zone
from flstream.errors import CheckpointError
from flstream.job.sections import ServerOptimizer as Section
from flstream.model.body import Scratch, Sink, Source
from flstream.model.layout import Layout

OptimizerType = Literal["fedavgm", "fedadagrad", "fedadam", "fedyogi"]
Moment = Literal["momentum", "second_moment"]


@dataclass(frozen=True)
class ServerOptimizer:
    """How the model moves by the aggregate's difference from it.

    Attributes:
        type: the algorithm.
        learning_rate: the paper's eta.
        beta_1: how much of the momentum a round keeps, from 0 to below 1.
        beta_2: how much of the second moment it keeps, likewise; FedAdagrad keeps all.
        tau: how adaptive it is: the smaller, the more; above 0.
    """

    type: OptimizerType
    learning_rate: float
    beta_1: float
    beta_2: float
    tau: float

    @property
    def moments(self) -> tuple[Moment, ...]:
        """What it remembers of each number from round to round."""
        momentum: tuple[Moment, ...] = ("momentum",) if self.beta_1 else ()
        return momentum if self.type == "fedavgm" else (*momentum, "second_moment")

    def state_layout(self, model: Layout, rule: Rule) -> Layout:
        """The layout of its state, which lies beside a model's floats that a rule aggregates."""
        return self.companion(model, rule.selected(model)).layout

    def companion(self, model: Layout, selected: Collection[str]) -> Companion:
        """Where its state lies: in float32, that of F64 in F64."""
        floats = [s for s in model.tensors if s.name in selected and s.dtype in FLOATS]
        kept_as = {"F64": "F64", "C64": "C64"}
        return Companion(
            model,
            (Beside(m, s, kept_as.get(s.dtype, "F32")) for m in self.moments for s in floats),
        )

    def initial(self, moment: Moment) -> float:
        """What a moment is before the first round."""
        return 0.0 if moment == "momentum" else self.tau**2

    def step(self, difference: Array, moments: dict[Moment, Array]) -> Array:
        """Take a step.

        Args:
            difference: float64, aggregate minus model; overwritten.
            moments: float64, those before the round; overwritten by those after it.

        Returns:
            What to add to the model.
        """
        if self.type != "fedavgm":
            difference *= 1 - self.beta_1
        momentum = difference
        if "momentum" in moments:
            momentum = moments["momentum"]
            momentum *= self.beta_1
            momentum += difference
        if self.type == "fedavgm":
            return self.learning_rate * momentum
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


def optimizer_for(section: Section) -> ServerOptimizer | None:
    """The server optimiser that a job file asks for; None where the aggregate is the next model."""
    if section.type == "none":
        return None
    rate, beta_1 = section.learning_rate, section.beta_1
    if rate is None:
        rate = 1.0 if section.type == "fedavgm" else 0.1
    if beta_1 is None:
        beta_1 = 0.0 if section.type == "fedadagrad" else 0.9
    return ServerOptimizer(section.type, rate, beta_1, section.beta_2, section.tau)


class Optimization(NamedTuple):
    """An optimiser, and its state in one round.

    Attributes:
        optimizer: the algorithm.
        state_in: what it remembers of the rounds before; None in the first.
        state_out: takes what it is to remember. As with the model, making that durable is the
            caller's; so the state of a round is a file of its own, and a round that is repeated
            starts from the one before.
    """

    optimizer: ServerOptimizer
    state_in: Source | None
    state_out: Sink


class OptimizerWalk:
    """An optimiser at work on one model, block by block.

    Raises:
        CheckpointError: the state is of another model or optimiser.
    """

    def __init__(
        self, optimization: Optimization, model: Layout, selected: Collection[str]
    ) -> None:
        self._optimizer, self._in, self._out = optimization
        self._companion = self._optimizer.companion(model, selected)
        self._scratch, self._joined = Scratch(), Scratch()
        if self._in is not None:
            difference = self._companion.layout.difference(self._in.layout)
            if difference:
                raise CheckpointError(
                    f"the state of the server optimizer {self._optimizer.type} does not fit the "
                    f"job: {difference}; go on with the round's own, or start a new run"
                )

    def advance(self, zone: Zone, part: slice, values: Array, old: Array) -> None:
        """Turn a block of the aggregate into one of the next model.

        Args:
            zone: of floats.
            part: the block, at most ``SMALL_BLOCK`` numbers of the zone.
            values: float64, the aggregate; overwritten by the next model.
            old: float64, the model.
        """
        moments: dict[Moment, Array] = {}
        for moment in self._optimizer.moments:
            moments[moment] = self._read(moment, self._place(moment, zone, part))
        np.subtract(values, old, out=values)
        np.add(old, self._optimizer.step(values, moments), out=values)
        for moment, after in moments.items():
            self._write(self._place(moment, zone, part), after)

    def keep(self, zone: Zone) -> None:
        """Leave the state of a zone of floats as it is."""
        for part in blocks(zone.numbers, SMALL_BLOCK):
            for moment in self._optimizer.moments:
                place = self._place(moment, zone, part)
                self._write(place, self._read(moment, place))

    def _place(self, moment: Moment, zone: Zone, part: slice) -> Place:
        return self._companion.place(moment, zone, part.start, part.stop)

    def _read(self, moment: Moment, place: Place) -> Array:
        block = np.full(place.numbers, self._optimizer.initial(moment))
        if self._in is not None:
            views = self._in.views(place.start, place.stop, self._scratch)
            Elements(place.dtype, join(views, self._joined)).load(slice(None), block)
        return block

    def _write(self, place: Place, block: Array) -> None:
        (out,) = self._out.views(place.start, place.stop)
        Elements(place.dtype, out).store(slice(None), block)
        self._out.commit(place.start, place.stop)
