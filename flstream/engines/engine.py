"""What a run's workers come from: this machine, or the nodes of a cluster; and their sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class WorkerSockets(NamedTuple):
    """One process's ends of the four sockets between the server and a worker.

    Each socket has one purpose: no demultiplexing is needed, and each end of a data socket belongs
    either to a download service or to a receiver.

    Attributes:
        control: Socket for control messages, in both directions.
        down: Socket for models, sent by the server's download service.
        up: Socket for updates, sent by the worker's download service.
        peers: Socket for what concerns other workers: connections to them, which come as file
            descriptors, what is offered to them, and folds.
    """

    control: socket.socket
    down: socket.socket
    up: socket.socket
    peers: socket.socket

    @property
    def are_local(self) -> bool:
        """Whether the process at the other end is on this machine, and of the same user."""
        return self.control.family == socket.AF_UNIX

    def close(self) -> None:
        """Close this process's ends of the sockets."""
        for end in self:
            end.close()

    def abandon(self) -> None:
        """Close the file descriptors alone, in a forked child that inherited the socket objects."""
        for end in self:
            if end.fileno() >= 0:  # a child of such a child has none
                os.close(end.detach())


def worker_socket_pairs() -> tuple[WorkerSockets, WorkerSockets]:
    """Create sockets for a worker.

    Returns:
        The server's ends, and the worker's ends.
    """
    pairs = [socket.socketpair() for _ in WorkerSockets._fields]
    return WorkerSockets(*(ours for ours, _ in pairs)), WorkerSockets(
        *(theirs for _, theirs in pairs)
    )


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

    def exit_code(self, name: str, seconds: float) -> int | None:
        """Return the exit code of a worker's last process, or minus the signal that killed it.

        Args:
            name: Name of the worker.
            seconds: Most seconds to wait until the process has ended.

        Returns:
            The code; None if it has not ended, or how it did is not known.
        """
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
