"""Protocols of engines and workers, and the sockets between server and worker."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class WorkerSockets(NamedTuple):
    """One process's ends of the four sockets between the server and a worker.

    Each socket has one purpose: no demultiplexing is needed, and each end of a data socket belongs
    either to a download service or to a receiver.

    Attributes:
        control: Socket for control messages, in both directions.
        down: Socket for models, sent by the server's download service.
        up: Socket for updates, sent by the worker's download service.
        peers: Socket for what concerns other workers: what is offered to them, and folds.
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
        """Close the file descriptors alone, in a forked child that inherited the sockets."""
        for end in self:
            if end.fileno() >= 0:  # a child of such a child has none
                os.close(end.detach())


def worker_socket_pairs() -> tuple[WorkerSockets, WorkerSockets]:
    """Return socket pairs for a worker: the server's ends, and the worker's ends."""
    pairs = [socket.socketpair() for _ in WorkerSockets._fields]
    return WorkerSockets(*(ours for ours, _ in pairs)), WorkerSockets(
        *(theirs for _, theirs in pairs)
    )


class WorkerProcess(Protocol):
    """Worker that an engine has started. Any thread may use it."""

    @property
    def ends(self) -> WorkerSockets:
        """The server's ends of the sockets to the worker."""
        ...

    def kill(self) -> None:
        """Kill the worker, and what it has started, unless it has ended."""
        ...

    def exit_code(self, seconds: float) -> int | None:
        """Wait ``seconds`` at most for the worker's end, and return its exit code.

        Returns:
            The code, or minus the signal that killed it; None if it has not ended, or how it did is
            not known.
        """
        ...


class Engine(Protocol):
    """Source of workers, which the threads of the server share.

    The loss of a worker reaches the server as the end of the worker's sockets, whatever the engine.
    An engine that learns of it by other means, such as a node's silence, ends them itself.
    """

    @property
    def failure(self) -> str:
        """Reason why the engine can start no worker any longer; empty while it can."""
        ...

    def start(self, name: str) -> WorkerProcess:
        """Start a worker, and connect it.

        Args:
            name: Name of the worker.

        Raises:
            WorkerLostError: It cannot be started.
        """
        ...

    def watch(self, name: str, pid: int, others: Sequence[int]) -> None:
        """Count processes that a worker has started towards the worker's memory.

        Args:
            name: Name of the worker, which may have ended meanwhile.
            pid: Pid of the process in which its training code has the tasks.
            others: Pids of its other processes.
        """
        ...

    def close(self, seconds: float = 0.0) -> None:
        """Wait for the end of the workers; a second call has no effect.

        Args:
            seconds: Time that workers have to end by themselves.
        """
        ...
