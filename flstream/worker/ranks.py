"""Calls that all processes (ranks) of a site's ``train.command`` make together.

Rank 0 has the site's tasks. It makes a call such as ``is_running()`` and publishes the outcome in a
store of the command's folder; the other ranks wait for that. Each call has the next number.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from flstream.client.base import check_base
from flstream.client.fl_model import FLModel
from flstream.client.learner import SiteContext
from flstream.client.ranks import RankPlace
from flstream.client.seeding import seed_everything
from flstream.client.session import CallName, TaskTurn
from flstream.errors import ClientError
from flstream.job.bodies import RESIDUAL
from flstream.worker.messages import Task
from flstream.worker.task_model import received_model
from flstream.worker.worker_info import WorkerInfo

if TYPE_CHECKING:
    from flstream.client.session import Into, Place

# A process that waits ends with that of its worker.
_FOREVER = timedelta(days=3650)


class Call(msgspec.Struct, frozen=True, array_like=True):
    """Outcome of a call in rank 0.

    Attributes:
        name: Name of the call; None once rank 0 makes no more.
        number: Number of the task that it has found, from 1; 0 for none.
        task: The task without the tokens of its bodies, where it has just begun; else None.
    """

    name: CallName | None
    number: int
    task: Task | None


class RankStore:
    """Store of the calls of a site's ranks.

    Args:
        folder: Folder of the site's command.
        place: Place of this process.
        parent: Pid of the worker's process, which started the command.

    Attributes:
        place: Place of this process.
    """

    def __init__(self, folder: Path, place: RankPlace, parent: int) -> None:
        from torch.distributed import FileStore  # type: ignore[attr-defined]

        self.place = place
        self._parent = parent
        self._store = FileStore(str(folder / "calls"), -1)
        self._store.set_timeout(_FOREVER)
        self._calls = self._tasks = 0
        self._state: str | None = None

    def other_pids(self) -> list[int]:
        """Return the pids of the site's other processes: worker, launcher and ranks."""
        children = psutil.Process(self._parent).children(recursive=True)
        return [self._parent, *(child.pid for child in children if child.pid != os.getpid())]

    def publish(
        self, name: CallName | None, has_task: bool = False, begun: Task | None = None
    ) -> None:
        """Publish the outcome of rank 0's call.

        Args:
            name: Name of the call; None for the end of all calls.
            has_task: Whether rank 0 has a task.
            begun: The task, where it has just begun.
        """
        if (begun is not None or name is None) and self._tasks and self._state is None:
            self.publish_state("")  # rank 0 has ended its last task without the site's own files
        if begun is not None:
            self._tasks, self._state = self._tasks + 1, None
            begun = msgspec.structs.replace(begun, token=b"")
        self._calls += 1
        call = Call(name, self._tasks if has_task else 0, begun)
        self._store.set(str(self._calls), msgspec.json.encode(call).decode())

    def publish_state(self, path: str) -> None:
        """Publish the folder of the site's own files in rank 0's task."""
        if self._state != path:
            self._state = path
            self._store.set(f"state {self._tasks}", path)

    def outcome(self, name: CallName) -> Call:
        """Wait until rank 0 has made a call.

        Raises:
            ClientError: It has made another one.
        """
        call = msgspec.json.decode(self._store.get(str(self._calls + 1)), type=Call)
        if call.name not in (name, None):
            raise ClientError(
                f"rank {self.place.rank} called {name}() where rank 0 called {call.name}(); make "
                "the same calls in all ranks, in the same order"
            )
        self._calls += call.name is not None
        return call

    def state(self, number: int) -> Path:
        """Wait for the folder of the site's own files in a task of rank 0.

        Raises:
            ClientError: Rank 0 has ended the task without them.
        """
        path = self._store.get(f"state {number}")
        if not path:
            raise ClientError(
                f"rank {self.place.rank} waits for the site's own files, and rank 0 has not "
                "asked for them in this task; call get_state_dir() in all ranks"
            )
        return Path(os.fsdecode(path))


class RankTurn(TaskTurn):
    """A site's part of a task in a rank other than 0, without tensors or answer."""

    def __init__(self, task: Task, site: SiteContext) -> None:
        super().__init__(task.kind, site)
        self._task = task

    def receive(
        self, into: Into | None = None, place: Place | None = None, file: Path | None = None
    ) -> FLModel:
        """Return the model of rank 0's task with empty ``params``."""
        if self.received is None:
            assert self.site is not None  # the session has the task
            if RESIDUAL in self._task.joined:
                raise ClientError(
                    f"the workflow sends {RESIDUAL!r} beside the model, which rank 0 alone "
                    "receives; train in one process (train.command)"
                )
            self.received = received_model(self._task, self.site.name, {})
            if file is not None:
                self.received.params, self.received.file = None, str(file)
            seed_everything(self.site.seed)
        return self.received

    def answer(self, model: FLModel) -> None:
        """End this rank's part of the task; rank 0 alone answers it."""
        check_base()
        self.site, self.before_keeping = None, {}


class RankTurns:
    """Turns of a site in a rank other than 0, which follow those of rank 0.

    Args:
        ranks: Store of the site's calls.
        info: Facts about the run and the worker.

    Attributes:
        place: Which of the site's processes this one is.
        optimizer_state: Value of ``train.optimizer_state``.
    """

    def __init__(self, ranks: RankStore, info: WorkerInfo) -> None:
        assert info.site is not None  # a command is of a site's own worker
        self.place = ranks.place
        self.optimizer_state = info.job.train.optimizer_state
        self._ranks, self._info = ranks, info
        self._turn: RankTurn | None = None
        self._site: SiteContext | None = None
        self._is_over = False

    def ready(self) -> None:
        """No effect: rank 0 reports to the server."""

    def next(self, call: CallName, timeout: float | None = None) -> RankTurn | None:
        """Make a call after rank 0; return the turn of its task, or None."""
        if self._is_over:
            return None
        outcome = self._ranks.outcome(call)
        number, task, self._is_over = outcome.number, outcome.task, outcome.name is None
        if task is not None:
            self._site = self._info.context(task, task.sites[0], lambda: self._ranks.state(number))
            self._turn = RankTurn(task, self._site)
        elif not number:
            self._turn = None
        elif self._turn is not None:
            self._turn.site = self._site  # also where this rank has answered
        return self._turn

    def log(self, key: str, value: Any, step: int | None) -> None:
        """No effect: rank 0 alone records values."""

    def end(self) -> None:
        """Make no more calls."""
        self._is_over = True

    def constants(self) -> dict[str, Any]:
        """Return the facts that stay the same in every task."""
        return self._info.constants(self._site)
