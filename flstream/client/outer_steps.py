"""Segments of inner steps between two exchanges, as DiLoCo trains (arXiv:2311.08105)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from flstream.client import session
from flstream.client.fl_model import FLModel
from flstream.client.optimizer_state import load_optimizer
from flstream.client.own_files import KeptTensors, kept_path, load_state, save_state
from flstream.client.seeding import generators, restore_generators
from flstream.errors import ClientError
from flstream.job.bodies import INNER_STEPS, KEEPS_MOMENTS, LATE_ALPHA, LATE_STEP, NUM_STEPS
from flstream.model.layout import Layout
from flstream.model.modules import exchanged_state, is_own_memory

if TYPE_CHECKING:
    import torch
    from torch.distributed.checkpoint.stateful import Stateful

    State = Mapping[str, torch.Tensor]

_REPLICA, _REST = "replica", "segment"


def outer_steps(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    inner_steps: int | None = None,
    examples: float | None = None,
    evaluate: Callable[[torch.nn.Module], Mapping[str, float]] | None = None,
    **stateful: Stateful,
) -> OuterSteps:
    """Return the inner steps of a site's training, over all tasks of the run.

    It is DiLoCo's inner loop (Douillard et al. 2023, arXiv:2311.08105). A training task is one
    segment: the model is received into ``model``, ``inner_steps`` turns of the loop go by, and the
    update is sent. Everything else continues from segment to segment, as if there were one loop::

        flare.init()
        steps = flare.outer_steps(net, optimizer, schedule=schedule, data=batches)
        for step in steps:  # the number of the inner step over the run, from 0
            loss = criterion(net(next(batches)))
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            steps.report(loss=loss)

    The site's state is kept at a segment's end, and taken from there at the beginning of the next
    one, so the bits are the same where sites share workers and after a kill: the tensors of
    ``model``, of which a segment may receive a part only, the state and settings of ``optimizer``,
    the random generators of Python, NumPy and torch, and the further objects. A site without a
    state begins with the received model and the objects as they were given here, and prints that.

    Args:
        model: Module that is trained; of a PEFT model, its adapter.
        optimizer: Its optimizer, of torch.
        inner_steps: Inner steps of a segment where the workflow does not say: ``diloco`` does, in
            ``meta["inner_steps"]``.
        examples: Number of the site's training examples, which is its update's weight in a mean;
            None for the number of the segment's steps.
        evaluate: Function of the module that returns metrics, for evaluation tasks. It is called in
            evaluation mode, without gradients. Without it the site gets no such tasks.
        **stateful: Objects with ``state_dict()`` and ``load_state_dict()``, such as the schedule of
            the learning rate and the source of batches, each under a name of your own.

    Raises:
        ClientError: An argument is of another kind, or the site has several processes (ranks).
    """
    if session.current().turns.place.ranks > 1:
        raise ClientError(
            "outer_steps() serves sites of one process, and train.command starts "
            f"{session.current().turns.place.ranks} for this site; leave out train.command"
        )
    if not is_own_memory(model, exchanged_state(model)):
        raise ClientError(
            "the tensors of this module's adapter are made anew whenever they are asked for, so "
            "outer_steps() cannot receive into them; train all weights, or another adapter"
        )
    for name, part in stateful.items():
        if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
            raise ClientError(
                f"outer_steps({name}=...) was given a {type(part).__name__}, which has no "
                "state_dict() and load_state_dict(); give it both, so that it can continue"
            )
    return OuterSteps(model, optimizer, inner_steps, examples, evaluate, stateful)


class OuterSteps:
    """Inner steps of a site's training; see :func:`outer_steps`."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        inner_steps: int | None,
        examples: float | None,
        evaluate: Callable[[torch.nn.Module], Mapping[str, float]] | None,
        stateful: Mapping[str, Stateful],
    ) -> None:
        self._model, self._inner_steps, self._examples = model, inner_steps, examples
        self._evaluate, self._optimizer, self._stateful = evaluate, optimizer, stateful
        # As the script has made them, for a site without a state.
        self._first = copy.deepcopy((optimizer.state_dict(), self._states()))
        self._reported: dict[str, list[Any]] = {}

    def report(self, **values: Any) -> None:
        """Report numbers of the current step, such as its loss.

        The mean of each over the segment travels with the update, as a metric. Where nobody
        evaluates, it counts as the score of the received model, as in NVFlare.

        Args:
            **values: Numbers, also scalars of NumPy or torch, by name.
        """
        for name, value in values.items():
            # Read at the segment's end: each copy from a device would wait for its work.
            value = value.detach() if hasattr(value, "detach") else value
            self._reported.setdefault(name, []).append(value)

    def __iter__(self) -> Iterator[int]:
        site_session = session.current()
        while site_session.is_running():
            kind = site_session.kind
            if self._evaluate is not None:
                kind = site_session.asked_kind("evaluate")
            if kind == "train":
                yield from self._segment(site_session)
            else:
                self._answer_evaluation(site_session)

    def _segment(self, site_session: session.Session) -> Iterator[int]:
        """Go through a training task."""
        own = exchanged_state(self._model)
        last = self._restored(site_session, own)
        model = self._receive(site_session, own)
        number_of_round = model.current_round or 0
        begins_anew = INNER_STEPS in model.meta and not model.meta.get(KEEPS_MOMENTS)
        if last is not None and begins_anew and last.round < number_of_round - 1:
            last = None  # it was left out of the segments since, or failed there
        if last is None:
            number, names = 0, list(model.params or {})
            self._begin_anew(model, own)
        else:
            number, names = last.steps, last.names
            restore_generators(last.generators)
        steps = self._steps_of(model)
        # 0 for none; the last one is the segment's end.
        late_step = int(model.meta.get(LATE_STEP, 0))
        self._reported = {}
        for local in range(steps + 1):
            if late_step and local == late_step:
                late = site_session.turn.late() or {}
                self._apply_late(late, float(model.meta.get(LATE_ALPHA, 0.0)))
            if local < steps:
                yield number + local
        self._keep(site_session, own, number_of_round, number + steps, names)
        meta: dict[str, Any] = {NUM_STEPS: steps}
        if self._examples is not None:
            meta["num_examples"] = self._examples
        # Of which the worker sends the part that the workflow asks for.
        params = {name: own[name].detach() for name in names}
        metrics = {
            name: sum(float(value) for value in values) / len(values)
            for name, values in self._reported.items()
        }
        site_session.send(FLModel(params=params, metrics=metrics or None, meta=meta))

    def _receive(self, site_session: session.Session, own: State) -> FLModel:
        """Receive a task's tensors over the module's own of their names."""

        def place(layout: Layout) -> State:
            names = [
                *layout.by_name,
                *(alias for alias, name in layout.aliases.items() if name in layout.by_name),
            ]
            if unknown := [name for name in names if name not in own]:
                raise ClientError(
                    f"tensor {unknown[0]!r} was received, and the module of outer_steps() has none "
                    "of this name; let model.factory build the module that is trained"
                )
            return {name: own[name] for name in names}

        model = site_session.receive(place=place)
        assert model is not None  # the task is here
        return model

    def _begin_anew(self, model: FLModel, own: State) -> None:
        """Begin without a state; refuse to train values that nobody has sent."""
        received = model.params or {}
        tied = {tensor.data_ptr() for name, tensor in own.items() if name in received}
        for name, tensor in own.items():
            if name not in received and tensor.data_ptr() not in tied:
                raise ClientError(
                    f"the site has no state of an earlier segment, and tensor {name!r} was not "
                    "received; have the workflow send the whole model to a site that is new"
                )
        optimizer, states = copy.deepcopy(self._first)
        self._optimizer.load_state_dict(optimizer)
        self._load_states(states)
        if model.current_round:
            print(
                "flstream: this site has no state of an earlier segment; it begins with the "
                "whole model, and with new moments",
                flush=True,
            )

    def _steps_of(self, model: FLModel) -> int:
        steps = model.meta.get(INNER_STEPS, self._inner_steps)
        if steps is None:
            raise ClientError(
                f"the workflow sends no meta[{INNER_STEPS!r}]; give outer_steps() inner_steps, or "
                "set workflow.type = diloco"
            )
        if not (isinstance(steps, int) and steps > 0):
            raise ClientError(
                f"{INNER_STEPS} is {steps!r}; a segment has a whole number, 1 or more"
            )
        return steps

    def _apply_late(self, params: Mapping[str, Any], alpha: float) -> None:
        """Blend tensors that are received amid a segment into the module's: the share alpha stays.

        It is equation 3 of Streaming DiLoCo (arXiv:2501.18512). Integers and bools are taken as
        they come.
        """
        import torch

        own = exchanged_state(self._model)
        with torch.no_grad():
            for name, value in params.items():
                tensor, value = own[name].detach(), torch.as_tensor(value).to(own[name])
                if alpha and tensor.is_floating_point():
                    tensor.mul_(alpha).add_(value, alpha=1 - alpha)
                else:
                    tensor.copy_(value)

    def _answer_evaluation(self, site_session: session.Session) -> None:
        import torch

        site_session.expect_model()
        if self._evaluate is None:
            raise ClientError(
                "the task is an evaluation; give outer_steps() the argument evaluate, or set "
                "evaluate.at = server"
            )
        self._receive(site_session, exchanged_state(self._model))
        was_training = self._model.training
        self._model.eval()
        try:
            with torch.no_grad():
                metrics = dict(self._evaluate(self._model))
        finally:
            self._model.train(was_training)
        site_session.send(FLModel(metrics=metrics))

    def _restored(self, site_session: session.Session, replica: State) -> _Segment | None:
        """Load the state of the last segment, but the generators'; None for a site without one."""
        path = kept_path(site_session, _REST, ".pt")
        if not path.exists():
            return None
        self._optimizer.state.clear()  # frees the moments before others are read
        segment = _Segment(**load_state(path))
        KeptTensors.of(site_session, _REPLICA).read_into(replica)
        load_optimizer(self._optimizer, segment.optimizer)
        self._load_states(segment.stateful)
        return segment

    def _keep(
        self,
        site_session: session.Session,
        replica: State,
        round_number: int,
        steps: int,
        names: list[str],
    ) -> None:
        """Write the site's state at a segment's end into its own files."""
        KeptTensors.of(site_session, _REPLICA).write(replica)
        optimizer = self._optimizer.state_dict()
        if site_session.turns.optimizer_state == "reset":
            optimizer["state"] = {}
        segment = _Segment(round_number, steps, names, optimizer, self._states(), generators())
        save_state(
            kept_path(site_session, _REST, ".pt"),
            segment._asdict(),
            "the state of the optimizer or of an object that was given to outer_steps()",
            "return these alone from state_dict()",
        )

    def _states(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._stateful.items()}

    def _load_states(self, states: Mapping[str, Any]) -> None:
        for name, part in self._stateful.items():
            part.load_state_dict(states[name])


class _Segment(NamedTuple):
    """State at a segment's end, without the tensors of the module.

    Attributes:
        round: Number of its round, from 0.
        steps: Number of the site's inner steps so far.
        names: Names of the global model's tensors, of which segments may receive a part.
        optimizer: State dict of the optimizer; without moments where they are reset.
        stateful: States of the further objects by name.
        generators: States of the generators of Python, NumPy, torch, and its devices.
    """

    round: int
    steps: int
    names: list[str]
    optimizer: dict[str, Any]
    stateful: dict[str, Any]
    generators: tuple[Any, ...]
