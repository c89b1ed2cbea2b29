"""Session of training code in a rank other than 0, which takes part in the tasks of rank 0."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstream.client.fl_model import FLModel
from flstream.client.messages import Task, TaskKind
from flstream.client.rank_link import RankLink, RankPlace
from flstream.client.rank_messages import AskedAgain, Call, RunOver, StateReady, TaskBegun
from flstream.client.seeding import seed_everything
from flstream.client.system_info import SystemInfo, constants_of
from flstream.client.task_model import received_model
from flstream.client.worker_info import WorkerInfo
from flstream.errors import ChannelClosedError, ClientError
from flstream.job.bodies import OptimizerState

if TYPE_CHECKING:
    from flstream.client.task_model import Into, Place


class _FollowedTask:
    """A task of rank 0, and how far this rank has followed it.

    Args:
        task: The task.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.model: FLModel | None = None
        self.state: Path | None = None
        # How often rank 0 has made each call in this task, at the least, and this rank.
        self.made: dict[Call, int] = {"is_running": 1, "receive": 1}
        self.followed: dict[Call, int] = {"is_running": 0, "receive": 0}


class RankSession:
    """Session of training code in a rank other than 0.

    A call of :meth:`is_running` or :meth:`receive` returns once rank 0 has made it as often in the
    same task, or has its next task. So the ranks of a script that makes the same calls in each are
    in the same task at the same time, whichever is faster.

    Args:
        link: Connection to the site's worker process.
        info: Facts about the run and the worker.

    Attributes:
        place: Which of the site's processes this one is.
        metrics: What the code has found of the model that it is about to train, which is not sent.
        has_scored: Whether the last task was an evaluation that a decorated function has answered.
    """

    def __init__(self, link: RankLink, info: WorkerInfo) -> None:
        assert info.site is not None  # a command is of a site's own worker
        self.place: RankPlace = link.place
        self.site: str = info.site
        self.metrics: Mapping[str, float] | None = None
        self.has_scored = False
        self._link = link
        self._info = info
        self._initialised = False
        self._is_over = False
        self._current: _FollowedTask | None = None
        self._ahead: deque[_FollowedTask] = deque()
        # The last one that was announced.
        self._newest: _FollowedTask | None = None

    @property
    def kind(self) -> str | None:
        """Kind of the current task, ``"train"`` for one; None between tasks."""
        return None if self._current is None else self._current.task.kind

    def asked_kind(self, *kinds: TaskKind) -> str | None:
        """Return the kind of the current task; rank 0 reports what the code asks."""
        return self.kind

    def expect_model(self) -> None:
        """Do nothing: rank 0 alone receives tensors."""

    @property
    def received(self) -> FLModel | None:
        """The model of the current task without its tensors; None before it was received."""
        return None if self._current is None else self._current.model

    @property
    def global_params(self) -> None:
        """No tensors: rank 0 alone has those that were received."""
        return None

    @property
    def personal_names(self) -> Collection[str]:
        """No names: rank 0 alone knows the model's tensors."""
        return ()

    @property
    def optimizer_state(self) -> OptimizerState | None:
        """Value of ``train.optimizer_state``; None where the training code decides."""
        return self._info.optimizer_state

    def before_keeping(self, action: Callable[[], None]) -> None:
        """Do nothing: rank 0 alone keeps files."""

    @property
    def task_seed(self) -> int:
        """Seed of the site in the current task, the same in all ranks."""
        return self._followed().task.sites[0].seed

    @property
    def state_dir(self) -> Path:
        """Folder for the site's own files, once rank 0 has asked for it in the same task.

        Raises:
            ClientError: There is no task, or rank 0 has answered it without them.
        """
        shared = self._followed()
        while shared.state is None:
            if self._is_over or shared is not self._newest:
                raise ClientError(
                    f"rank {self.place.rank} waits for the site's own files, and rank 0 has not "
                    "asked for them in this task; call get_state_dir() in all ranks"
                )
            self._take(None)
        return shared.state

    def init(self, rank: str | int | None = None) -> None:
        """Allow the other calls; rank 0 reports that the training code is ready.

        Raises:
            ClientError: This process is another rank.
        """
        self.place.check(rank)
        self._initialised = True

    def is_running(self) -> bool:
        """Wait until rank 0 has its next task; return False if the run is over."""
        return self._follow("is_running", None) is not None

    def await_task(self) -> bool:
        """Wait for a task where there is none; return False if the run is over."""
        return self._current is not None or self._follow(None, None) is not None

    def receive(
        self, timeout: float | None = None, into: Into | None = None, place: Place | None = None
    ) -> FLModel | None:
        """Return the model of rank 0's task without its tensors, which rank 0 alone has.

        Args:
            timeout: Seconds to wait for a task; None to wait without a limit.
            into: Without effect.
            place: Without effect.

        Returns:
            The model, with empty ``params``; None if the run is over or no task came in time.
        """
        shared = self._follow("receive", timeout)
        if shared is None:
            return None
        if shared.model is None:
            shared.model = received_model(shared.task, self.site, {})
            seed_everything(self.task_seed)
        return shared.model

    def send(self, model: FLModel, clear_cache: bool = True) -> None:
        """End this rank's part of the task; rank 0 alone answers it."""
        self._current = None

    def clear(self) -> None:
        """Do nothing: there are no tensors."""

    def shutdown(self) -> None:
        """Take part in no more tasks."""
        self._is_over = True
        self._ahead.clear()

    def log(self, key: str, value: Any, step: int | None = None) -> None:
        """Do nothing: rank 0 alone records values."""

    def system_info(self) -> Mapping[str, Any]:
        """Return the facts about the run and the site, by name."""
        return SystemInfo(self)

    def constants(self) -> dict[str, Any]:
        """Return the facts that are the same in every task."""
        return constants_of(self._info, self.site, self._info.index)

    def _followed(self) -> _FollowedTask:
        if self._current is None:
            raise ClientError("there is no task; call receive() first")
        return self._current

    def _follow(self, call: Call | None, timeout: float | None) -> _FollowedTask | None:
        """Wait until rank 0 has made a call as often as this rank has now.

        Args:
            call: The call; None for any task.
            timeout: Seconds to wait; None to wait without a limit.

        Returns:
            The task in which it was made; None if the run is over, or after ``timeout``.
        """
        if not self._initialised:
            raise ClientError("call flstream.client.init() before anything else")
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            current = self._current
            if current is not None and call is None:
                return current
            if current is not None and call and current.followed[call] < current.made[call]:
                current.followed[call] += 1
                return current
            if self._ahead:
                self._current = self._ahead.popleft()
                self.metrics, self.has_scored = None, False
            elif self._is_over:
                self._current = None
                return None
            elif not self._take(None if ends is None else max(ends - time.monotonic(), 0.0)):
                return None

    def _take(self, timeout: float | None) -> bool:
        """Take the next message about rank 0; return False if there is none in time."""
        if timeout is not None and not self._link.wait(timeout):
            return False
        try:
            message = self._link.receive()
        except ChannelClosedError:
            message = RunOver()  # this process is about to be ended
        match message:
            case TaskBegun(task):
                self._newest = _FollowedTask(task)
                self._ahead.append(self._newest)
            case AskedAgain(call) if self._newest is not None:
                self._newest.made[call] += 1
            case StateReady(path) if self._newest is not None:
                self._newest.state = Path(path)
            case RunOver():
                self._is_over = True
        return True
