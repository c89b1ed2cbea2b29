"""Sockets between the server and one worker."""

from __future__ import annotations

import os
import socket
from typing import NamedTuple


class WorkerSockets(NamedTuple):
    """One process's ends of the four sockets between the server and a worker.

    Each socket has one purpose: no demultiplexing is needed, and each end of a data socket belongs
    either to a download service or to a receiver.

    Attributes:
        control: socket for control messages, in both directions.
        down: socket for models, sent by the server's download service.
        up: socket for updates, sent by the worker's download service.
        peers: socket for what concerns other workers: connections to them, which come as file
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
