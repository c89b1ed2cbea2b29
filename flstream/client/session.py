"""Session of this process's training code, behind :mod:`flstream.client`."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from flstream.client.fl_model import FLModel, number_of
from flstream.client.received_values import NO_MODEL, without_tensors
from flstream.errors import ClientError
from flstream.job.bodies import OptimizerState

if TYPE_CHECKING:
    import torch

    from flstream.client.learner import SiteContext
    from flstream.client.ranks import RankPlace
    from flstream.model.layout import Layout
    from flstream.model.memory import Params
    from flstream.streaming.selection import TensorSpec

    Into = torch.nn.Module | Mapping[str, torch.Tensor]
    Place = Callable[[Layout], Mapping[str, torch.Tensor] | None]

CallName = Literal["is_running", "receive"]

# Times that a loop may ask whether the run goes on while it has a model.
_MOST_UNANSWERED = 2


class TaskTurn(ABC):
    """A site's part of a task, of one kind for rank 0 and another for other ranks.

    Attributes:
        kind: Kind of the task, ``"train"`` for one.
        site: The site and the task; None once it has answered or failed.
        received: The model as the site has received it; None before.
        global_params: Tensors of the global model, which stay as they were received; None where
            nothing asks for them.
        personal_names: Names of the tensors that stay with the site.
        asks: Kinds of task that the site's code has told from trainings.
        before_keeping: Functions of the answer, called before the site's files are kept, by names
            of what they keep.
        units: Units of work that the site's code has declared; None where it has not.
    """

    def __init__(self, kind: str, site: SiteContext) -> None:
        self.kind = kind
        self.site: SiteContext | None = site
        self.received: FLModel | None = None
        self.global_params: Params | None = None
        self.personal_names: frozenset[str] = frozenset()
        self.asks: set[str] = set()
        self.before_keeping: dict[str, Callable[[FLModel], None]] = {}
        self.units: float | None = None

    @property
    def layout(self) -> Layout | None:
        """Layout of the received model; None before, and in ranks that receive no tensors."""
        return None

    @abstractmethod
    def receive(
        self, into: Into | None = None, place: Place | None = None, file: Path | None = None
    ) -> FLModel:
        """Return the model, and seed the global random generators."""

    @abstractmethod
    def answer(self, model: FLModel) -> None:
        """Answer for the site."""

    def fetch(self, names: Sequence[str]) -> Params:
        """Return some tensors of the model, which rank 0 alone may fetch."""
        raise ClientError("fetch() was called in another rank than 0; call it in rank 0 alone")

    def late(self) -> Params | None:
        """Wait for the tensors that come while the site trains; None where none do, or no more."""
        return None

    def declare(self, units: float) -> None:
        """Record how much work the site's code does in this task."""
        self.units = units


class TaskTurns(Protocol):
    """Turns of a process's sites, one after another.

    Attributes:
        place: Which of the site's processes this one is.
        optimizer_state: Value of ``train.optimizer_state``; None where the training code decides.
    """

    place: RankPlace
    optimizer_state: OptimizerState | None

    def ready(self) -> None:
        """Report to the server that the training code is ready."""

    def next(self, call: CallName, timeout: float | None = None) -> TaskTurn | None:
        """Return the unanswered turn, or wait for the next one; None at the end."""

    def log(self, key: str, value: Any, step: int | None) -> None:
        """Record values in the run's events."""

    def end(self) -> None:
        """Take no more tasks."""

    def constants(self) -> dict[str, Any]:
        """Return the facts about the run and the site that stay the same in every task."""


def knows_task(turn: TaskTurn) -> bool:
    """Return whether a site's code knows its task: all kinds but to submit a model."""
    return turn.kind != "submit_model" or "submit_model" in turn.asks


def decline(turn: TaskTurn) -> None:
    """Answer for a site whose code does not know its task."""
    turn.before_keeping = {}
    print("flstream: the code does not submit models; the last one that it sent counts")
    turn.answer(FLModel())


class Session:
    """Session of training code with the server.

    Args:
        turns: The turns of the process's sites.
        turn: The one turn that the code has; None in a site's own process, in which it asks for
            one after another.

    Attributes:
        metrics: Scores of the received model that the code reported; None for none.
        has_scored: Whether the last task was an evaluation that a decorated function has answered.
        has_declined: Whether the code ended in a task that it does not know of.
        own_origin: Tensors of the received model, while the code works on one of the site's own.
    """

    def __init__(self, turns: TaskTurns, turn: TaskTurn | None = None) -> None:
        self.turns = turns
        self.metrics: Mapping[str, float] | None = None
        self.has_scored = False
        self.has_declined = False
        self.own_origin: Params | None = None
        self._turn = turn
        self._ends = turn is not None
        # Until the code has waited for a task, it tells nothing of how it treats one.
        self._is_initialised = self._has_waited = False
        self._model: FLModel | None = None
        self._into: Into | None = None
        # Times that the code has looked for the next task while it had the model of one.
        self._unanswered = 0

    @property
    def site(self) -> str:
        """Name of the site."""
        return str(self.constants()["site_name"])

    @property
    def kind(self) -> str | None:
        """Kind of the current task, ``"train"`` for one; None between tasks."""
        turn = self._turn
        return None if turn is None or turn.site is None else turn.kind

    @property
    def turn(self) -> TaskTurn:
        """Part of the current task that the site has; a ClientError without a task."""
        if self._turn is None or self._turn.site is None:
            raise ClientError("there is no task; call receive() first")
        return self._turn

    @property
    def context(self) -> SiteContext:
        """The site in the current task; a ClientError without a task."""
        site = self.turn.site
        assert site is not None
        return site

    def received_by(self, helper: str) -> tuple[TaskTurn, FLModel]:
        """Return the current turn and its received model, for a helper of training code."""
        if self._turn is None or self._turn.received is None:
            raise ClientError(f"{helper} before a model was received; call receive() first")
        return self._turn, self._turn.received

    def asked_kind(self, *kinds: str) -> str | None:
        """Return the kind of the current task, and note the kinds that code distinguishes."""
        if self._has_waited and self._turn is not None:
            self._turn.asks.update(kinds)
        return self.kind

    def expect_model(self) -> None:
        """Refuse code that needs a model where the task is to submit one."""
        if self._turn is not None and not knows_task(self._turn):
            raise ClientError(NO_MODEL)

    @property
    def is_declined(self) -> bool:
        """Whether the code ended in a way that shows that it does not know the task."""
        return self.kind is not None and not knows_task(self.turn)

    def init(self, rank: str | int | None = None) -> None:
        """Report to the server that the code is ready; see :func:`flstream.client.init`."""
        self.turns.place.check(rank)
        self._is_initialised = True
        self.turns.ready()

    def is_running(self) -> bool:
        """Wait for the next task; return False if the run is over."""
        is_running = self._has_task("is_running")
        if self._model is not None:
            self._unanswered += 1
            if self._unanswered > _MOST_UNANSWERED:
                raise ClientError(
                    "the model of this task was received, and turns of the loop have gone by "
                    "without an answer; send() an FLModel in each"
                )
        return is_running

    def receive(
        self,
        timeout: float | None = None,
        into: Into | None = None,
        place: Place | None = None,
        file: str | os.PathLike[str] | None = None,
    ) -> FLModel | None:
        """Fetch the model of the next task, or return that of the current one again.

        Args:
            timeout: As for :func:`flstream.client.receive`.
            into: The same.
            place: Function that returns the tensors to receive into, or None to allocate memory; in
                the place of ``into``, and called only if the model was not received before.
            file: As for :func:`flstream.client.receive`.
        """
        if file is not None and (into is not None or place is not None):
            raise ClientError("receive() was given both into and file; give it one of them")
        if not self._has_task("receive", timeout):
            return None
        if into is not None or place is not None or file is not None:
            self.expect_model()
        if self._model is None:
            path = None if file is None else self.context.written_path(file)
            self._model, self._into = self.turn.receive(into, place, path), into
        elif into is not None and into is not self._into:
            raise ClientError(
                "the model of this task was received before, into other tensors; give into to the "
                "first receive() of a task, or copy with load_state_dict(model.params)"
            )
        return self._model

    def fetch(self, specs: Sequence[TensorSpec]) -> Params:
        """Fetch some tensors of the model; see :func:`flstream.client.fetch`."""
        self._has_task("receive")
        self.expect_model()
        current_round = self.context.round - 1
        for spec in specs:
            is_of_model = not spec.report and set(spec.tags) <= {"aggregated"}
            if not is_of_model or spec.round_number not in (0, current_round):
                raise ClientError(
                    f"{spec} is no tensor of the task's model; give its name, the round "
                    f'{current_round}, and as tags none or ("aggregated",)'
                )
        return self.turn.fetch([spec.tensor_name for spec in specs])

    def send(self, model: FLModel, clear_cache: bool = True) -> None:
        """Answer the current task; see :func:`flstream.client.send`."""
        if not isinstance(model, FLModel):
            raise ClientError(
                f"send() was given a {type(model).__name__}; give it an FLModel, such as "
                "FLModel(params=model.state_dict())"
            )
        if self._turn is None:
            raise ClientError("there is no task to answer; call receive() first")
        if self.own_origin is not None:
            raise ClientError(
                "send() was called within own_model(); call it after the block, when the module "
                "has the global model's values again"
            )
        if self._turn.site is None:
            raise ClientError("the task was answered already; call send() once for each")
        self._turn.answer(model)
        self._unanswered = 0
        if clear_cache:
            model.params = None
            model.meta = without_tensors(model.meta)
            self.clear()
        self._model = self._into = None

    def clear(self) -> None:
        """Release the tensors of the received model."""
        if self._model is not None:
            self._model.params = None
            self._model.meta = without_tensors(self._model.meta)

    def shutdown(self) -> None:
        """Take no more tasks."""
        self._ends = True
        self.turns.end()

    def work(self, units: float) -> None:
        """Declare the work of the current task; see :func:`flstream.client.work`."""
        number = number_of(units)
        if number is None or not (math.isfinite(number) and number >= 0):
            raise ClientError(
                f"work() was given {units!r}; give it a number of units, such as the examples that "
                "the training goes through"
            )
        if self.turn.units is not None:
            raise ClientError("work() was called twice in a task; declare the work of all of it")
        self.turn.declare(number)

    def log(self, key: str, value: Any, step: int | None = None) -> None:
        """Record values in the run's events; see :func:`flstream.client.log`."""
        self.turns.log(key, value, step)

    def system_info(self) -> dict[str, Any]:
        """Return the facts about the run and the site, by name."""
        facts = self.constants()
        return facts if self.kind is None else {**facts, "task_seed": self.context.seed}

    def constants(self) -> dict[str, Any]:
        """Return the facts that stay the same in every task."""
        return self.turns.constants()

    def _has_task(self, call: CallName, timeout: float | None = None) -> bool:
        """Wait for a task where there is none; return whether there is one."""
        if not self._is_initialised:
            raise ClientError("call flstream.client.init() before anything else")
        self._has_waited = True
        if self._ends:
            return self.kind is not None
        turn = self.turns.next(call, timeout)
        if turn is not self._turn:
            self._turn, self._model, self._into = turn, None, None
            self._unanswered, self.metrics, self.has_scored = 0, None, False
        return turn is not None


_session: Session | None = None


def enter(session: Session | None) -> None:
    """Set the session of this process's training code; None for none."""
    global _session
    _session = session


def present() -> Session | None:
    """Return the session of this process's training code; None outside of a run."""
    return _session


def current() -> Session:
    """Return the session of this process's training code.

    Raises:
        ClientError: The process was not started by ``flstream simulate``.
    """
    if _session is None:
        raise ClientError(
            "this script is not running as a site; name it as train.script in a job file "
            "and run: flstream simulate job.conf"
        )
    return _session
