"""Processes of the streaming measurements, linked in pairs."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar

SenderT = TypeVar("SenderT")
ReceiverT = TypeVar("ReceiverT")


class Link(NamedTuple):
    """One process's ends of the connections between a sender and a receiver.

    Attributes:
        receiver: name of the receiver.
        control: connection for control messages: tokens, and when to begin.
        data: socket for downloads.
        bare: socket for bytes without a protocol.
        tcp: socket for downloads over TCP.
        bare_tcp: socket for bytes without a protocol over TCP.
    """

    receiver: str
    control: Any
    data: socket.socket
    bare: socket.socket
    tcp: socket.socket
    bare_tcp: socket.socket

    def close(self) -> None:
        """Close the ends of all connections."""
        for end in self[1:]:
            end.close()


def together(
    sender: Callable[..., SenderT], receiver: Callable[..., ReceiverT], count: int, *args: Any
) -> tuple[SenderT, list[ReceiverT]]:
    """Run a sender and its receivers, each in a new process.

    Args:
        sender: function of the sender, called with the list of its links and ``args``.
        receiver: function of a receiver, called with its link and ``args``.
        count: number of receivers.
        args: further arguments of both functions.

    Returns:
        The sender's result, and the list of the receivers' results.

    Raises:
        EOFError: a process failed; its traceback is on standard error.
    """
    pairs = [_linked(f"receiver-{number}") for number in range(count)]
    jobs: list[tuple[Callable[..., Any], Any]] = [(sender, [ours for ours, _ in pairs])]
    jobs += [(receiver, theirs) for _, theirs in pairs]
    # Spawned, not forked, so that no process inherits another one's memory.
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        answers: list[Connection] = []
        for job, link in jobs:
            answer, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(theirs, job, link, *args), daemon=True)
            process.start()
            stack.callback(process.join)
            stack.callback(answer.close)
            theirs.close()
            answers.append(answer)
        # An end that stays open here would keep a process waiting for a peer that has died.
        for pair in pairs:
            for link in pair:
                link.close()
        sent, *received = [answer.recv() for answer in answers]
    return sent, received


def _linked(name: str) -> tuple[Link, Link]:
    ours, theirs = multiprocessing.Pipe()
    pairs = socket.socketpair(), socket.socketpair(), _tcp_pair(), _tcp_pair()
    return Link(name, ours, *(one for one, _ in pairs)), Link(
        name, theirs, *(other for _, other in pairs)
    )


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Connect two sockets over the loopback, as both ends of an authenticated channel are."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    for sock in (ours, theirs):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, theirs


def _run(answer: Connection, job: Callable[..., Any], *args: Any) -> None:
    answer.send(job(*args))
