"""Session of training code in a rank other than 0, which takes part in the tasks of rank 0."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstream.client.fl_model import FLModel
from flstream.client.seeding import seed_everything
from flstream.errors import ClientError
from flstream.job.bodies import OptimizerState
from flstream.worker.messages import Task, TaskKind
from flstream.worker.rank_store import CallName, RankStore
from flstream.worker.system_info import SystemInfo, constants_of
from flstream.worker.task_model import received_model
from flstream.worker.worker_info import WorkerInfo

if TYPE_CHECKING:
    from flstream.client.session import Into, Place
    from flstream.model.memory import Params


class RankSession:
    """Session of training code in a rank other than 0, with the surface of ``Session``.

    It has no tensors, and sends, records and keeps nothing.

    Args:
        ranks: Store of the site's calls.
        info: Facts about the run and the worker.

    Attributes:
        metrics: Score of the model that is about to be trained, which is not sent.
        has_scored: Whether the last task was an evaluation that a decorated function has answered.
        received: The model of the current task without its tensors; None before it was received.
        personal_names: Names of the tensors of which the site trains a version of its own.
        own_origin: Tensors of the received model, while the code works on one of the site's own.
    """

    global_params: None = None

    def __init__(self, ranks: RankStore, info: WorkerInfo) -> None:
        assert info.site is not None  # a command is of a site's own worker
        self.place = ranks.place
        self.site = info.site
        self.metrics: Mapping[str, float] | None = None
        self.has_scored = False
        self.received: FLModel | None = None
        self.personal_names: frozenset[str] = frozenset()
        self.own_origin: Params | None = None
        self._ranks, self._info = ranks, info
        self._is_initialised = self._is_over = False
        # Rank 0's task, until this rank has answered it, and its number.
        self._task: Task | None = None
        self._number = 0

    @property
    def kind(self) -> TaskKind | None:
        """Kind of the current task, ``"train"`` for one; None between tasks."""
        return None if self._task is None else self._task.kind

    def asked_kind(self, *kinds: TaskKind) -> TaskKind | None:
        """Return the kind of the current task; rank 0 reports the kinds that code asks for."""
        return self.kind

    def expect_model(self) -> None:
        """No effect: rank 0 alone receives tensors."""

    @property
    def optimizer_state(self) -> OptimizerState | None:
        """Value of ``train.optimizer_state``; None where the training code decides."""
        return self._info.optimizer_state

    def send_beside(self, bodies: Mapping[str, Params]) -> None:
        """No effect: rank 0 alone sends tensors."""

    def before_keeping(self, action: Callable[[], None]) -> None:
        """No effect: rank 0 alone keeps files."""

    def keep_personal(self, patterns: Sequence[str], tensors: Mapping[str, Any]) -> frozenset[str]:
        """Note the names of the tensors that the site keeps, whose values rank 0 has."""
        self.personal_names = frozenset(
            name for name in tensors if any(re.search(each, name) for each in patterns)
        )
        return self.personal_names

    @contextmanager
    def with_own_model(self, origin: Params) -> Iterator[None]:
        """Work on a model of the site's own until the end of the block."""
        self.own_origin = origin
        try:
            yield
        finally:
            self.own_origin = None

    @property
    def task_seed(self) -> int:
        """Seed of the site in the current task, the same in all ranks."""
        return self._current().sites[0].seed

    @property
    def state_dir(self) -> Path:
        """Folder for the site's own files, once rank 0 has asked for it in the same task.

        Raises:
            ClientError: There is no task, or rank 0 has answered it without them.
        """
        self._current()
        return self._ranks.state(self._number)

    def init(self, rank: str | int | None = None) -> None:
        """Allow the other calls.

        Raises:
            ClientError: This process is another rank.
        """
        self.place.check(rank)
        self._is_initialised = True

    def is_running(self) -> bool:
        """Wait until rank 0 has its next task; return False if the run is over."""
        return self._follow("is_running")

    def receive(
        self, timeout: float | None = None, into: Into | None = None, place: Place | None = None
    ) -> FLModel | None:
        """Return the model of rank 0's task with empty ``params``; None if rank 0 has no task."""
        if self._follow("receive") and self.received is None:
            self.received = received_model(self._current(), self.site, {})
            self.personal_names = frozenset()
            seed_everything(self.task_seed)
        return self.received

    def send(self, model: FLModel, clear_cache: bool = True) -> None:
        """End this rank's part of the task; rank 0 alone answers it."""
        self._task = None

    def clear(self) -> None:
        """No effect: there are no tensors."""

    def shutdown(self) -> None:
        """Take part in no more tasks."""
        self._is_over, self._task, self.received = True, None, None

    def log(self, key: str, value: Any, step: int | None = None) -> None:
        """No effect: rank 0 alone records values."""

    def system_info(self) -> Mapping[str, Any]:
        """Return the facts about the run and the site, by name."""
        return SystemInfo(self)

    def constants(self) -> dict[str, Any]:
        """Return the facts that are the same in every task."""
        return constants_of(self._info, self.site, self._info.index)

    def _current(self) -> Task:
        if self._task is None:
            raise ClientError("there is no task; call receive() first")
        return self._task

    def _follow(self, name: CallName) -> bool:
        """Make a call after rank 0; return whether that has found a task."""
        if not self._is_initialised:
            raise ClientError("call flstream.client.init() before anything else")
        if not self._is_over:
            call = self._ranks.outcome(name)
            if call.task != self._number:
                self.metrics, self.has_scored, self.received = None, False, None
            self._number, self._is_over = call.task, call.name is None
            self._task = self._ranks.task(call.task) if call.task else None
        return self._task is not None
