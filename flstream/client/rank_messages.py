"""The messages between a site's worker process and the ranks that the site's command has started.

A rank is one of the processes in which a launcher such as torchrun runs the training script. Each
of them connects with ``RankHello``, and is sent ``RankWelcome`` or ``RankRefused``. Rank 0 gets the
sockets to the server with its welcome, and has the tasks; what it says of them (``TaskBegun``,
``AskedAgain``, ``StateReady``, ``RunOver``) the worker process passes on to the other ranks. Each
rank ends with ``ScriptEnded``, which rank 0 is answered with ``SiteVerdict``. A connection that is
closed without it is that of a process that has died.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from flstream.client.messages import Task
from flstream.client.worker_info import WorkerInfo

Call = Literal["is_running", "receive"]
"""A call that a script may make several times in a task."""


class RankHello(msgspec.Struct, tag=True, frozen=True):
    """Rank: a process of the command, before it runs the script.

    Attributes:
        token: What the worker process has given to its command, and to nobody else.
        rank: Number of the process, from 0.
        pid: Its pid.
    """

    token: str
    rank: int
    pid: int


class RankWelcome(msgspec.Struct, tag=True, frozen=True):
    """Worker process: facts for a rank.

    Attributes:
        info: Facts about the run and the worker.
        threads: Number of torch's threads.
        pids: Processes of the site so far, besides rank 0.
    """

    info: WorkerInfo
    threads: int
    pids: list[int]


class RankRefused(msgspec.Struct, tag=True, frozen=True):
    """Worker process: there is such a rank already."""

    reason: str


class RankJoined(msgspec.Struct, tag=True, frozen=True):
    """Worker process, to rank 0: another rank has connected."""

    pid: int


class TaskBegun(msgspec.Struct, tag=True, frozen=True):
    """Rank 0: it has its next task, in which all ranks take part.

    Attributes:
        task: The task, without the tokens of its bodies.
    """

    task: Task


class AskedAgain(msgspec.Struct, tag=True, frozen=True):
    """Rank 0: the script has made a call once more in the same task."""

    call: Call


class StateReady(msgspec.Struct, tag=True, frozen=True):
    """Rank 0: the site's own files are laid out for this task."""

    path: str


class RunOver(msgspec.Struct, tag=True, frozen=True):
    """Rank 0: there are no more tasks for the script."""


class ScriptEnded(msgspec.Struct, tag=True, frozen=True):
    """Rank: the script has ended.

    Attributes:
        failure: Why it failed; None if it did not.
        time: When it ended, in seconds on the machine's monotonic clock: of several ranks that
            fail, the first one is the cause.
    """

    failure: str | None
    time: float


class SiteVerdict(msgspec.Struct, tag=True, frozen=True):
    """Worker process, to rank 0: why the scripts of the site failed; None if they did not."""

    failure: str | None


ToOthers = TaskBegun | AskedAgain | StateReady | RunOver
FromRank = RankHello | ToOthers | ScriptEnded
ToRank = RankWelcome | RankRefused | RankJoined | ToOthers | SiteVerdict
