"""What a run's workers come from: this machine, or the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from flstream.engines.worker_sockets import WorkerSockets


class StartedWorker(NamedTuple):
    """A worker that an engine has started.

    Attributes:
        pid: Pid of the worker's process, on its node.
        ends: The server's ends of the sockets to the worker.
        number: Number by which the engine knows the worker; 0 for a process of this machine.
    """

    pid: int
    ends: WorkerSockets
    number: int = 0


class Engine(Protocol):
    """Where workers come from. The launcher has it, and its threads share it.

    The loss of a worker reaches the server as the end of the worker's sockets, whatever the engine.
    An engine that learns of it by other means, such as a node's silence, ends them itself.
    """

    @property
    def room(self) -> int | None:
        """How many workers there is room for now; None where that is for the job to say."""
        ...

    def start(self, name: str) -> StartedWorker:
        """Start a worker, and connect it.

        Args:
            name: Name of the worker.

        Raises:
            Exception: It cannot be started; the message says why.
        """
        ...

    def watch(self, name: str, pid: int, others: Sequence[int]) -> None:
        """Count processes that a worker has started as a part of it, as far as memory goes.

        Args:
            name: Name of the worker, which may have ended meanwhile.
            pid: Pid of the process in which its training code has the tasks.
            others: Pids of its other processes.
        """
        ...

    def kill(self, number: int) -> None:
        """Kill a worker, and what it has started, unless it has ended."""
        ...

    def await_end(self, number: int, seconds: float) -> None:
        """Wait until a worker has closed all its files, for at most ``seconds``."""
        ...

    @property
    def causes(self) -> Mapping[str, str]:
        """Why a worker's last process has ended, as a sentence without a point, by worker's name.

        Of those alone that ended before their time, as far as the engine knows.
        """
        ...

    def close(self, seconds: float = 0.0) -> None:
        """Start nothing more, and end what there is; a second call has no effect.

        Args:
            seconds: Time that workers have to end by themselves, where this ends them.
        """
        ...
