"""Calls that all processes (ranks) of a site's ``train.command`` make together.

Rank 0 has the site's tasks. It makes a call such as ``is_running()`` and publishes the outcome in a
store of the command's folder; the other ranks wait for that. Each call has the next number.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from flstream.client.ranks import RankPlace
from flstream.errors import ClientError
from flstream.worker.messages import Task

# A process that waits ends with that of its worker.
_FOREVER = timedelta(days=3650)


CallName = Literal["is_running", "receive"]


class Call(msgspec.Struct, frozen=True, array_like=True):
    """Outcome of a call in rank 0.

    Attributes:
        name: Name of the call; None once rank 0 makes no more.
        task: Number of the task that it has found, from 1; 0 for none.
    """

    name: CallName | None
    task: int


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

    def begin(self, task: Task) -> None:
        """Begin rank 0's next task."""
        self._close_task()
        self._tasks, self._state = self._tasks + 1, None
        self._set(f"task {self._tasks}", msgspec.structs.replace(task, bodies={}))

    def publish(self, name: CallName, has_task: bool) -> None:
        """Publish the outcome of rank 0's call."""
        self._calls += 1
        self._set(str(self._calls), Call(name, self._tasks if has_task else 0))

    def publish_state(self, path: str) -> None:
        """Publish the folder of the site's own files in rank 0's task."""
        if self._state != path:
            self._state = path
            self._store.set(f"state {self._tasks}", path)

    def end(self) -> None:
        """Publish that rank 0 makes no more calls."""
        self._close_task()
        self._calls += 1
        self._set(str(self._calls), Call(None, 0))

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

    def task(self, number: int) -> Task:
        """Return a task of rank 0, without the tokens of its bodies."""
        return msgspec.json.decode(self._store.get(f"task {number}"), type=Task)

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

    def _close_task(self) -> None:
        if self._tasks and self._state is None:
            self.publish_state("")

    def _set(self, key: str, value: Task | Call) -> None:
        self._store.set(key, msgspec.json.encode(value).decode())
