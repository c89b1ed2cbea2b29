"""What the measurements of streaming share: processes that are linked in pairs, and a table."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar

SenderT = TypeVar("SenderT")
ReceiverT = TypeVar("ReceiverT")


class Link(NamedTuple):
    """One process's ends of what connects a sender to one receiver.

    Attributes:
        receiver: the receiver's name.
        control: for what the two must tell each other: tokens, and when to begin.
        data: carries downloads.
        bare: carries bytes with nothing around them.
    """

    receiver: str
    control: Any
    data: socket.socket
    bare: socket.socket

    def close(self) -> None:
        """Close these ends."""
        self.control.close()
        self.data.close()
        self.bare.close()


def together(
    sender: Callable[..., SenderT], receiver: Callable[..., ReceiverT], count: int, *args: Any
) -> tuple[SenderT, list[ReceiverT]]:
    """Run a sender and its receivers, each in a new process, and return what they return.

    Args:
        sender: called with the list of its links, then ``args``.
        receiver: called with its link, then ``args``.
        count: how many receivers.
        args: for both.

    Raises:
        EOFError: one of them failed; it has said why on standard error.
    """
    pairs = [_linked(f"receiver-{number}") for number in range(count)]
    jobs: list[tuple[Callable[..., Any], Any]] = [(sender, [ours for ours, _ in pairs])]
    jobs += [(receiver, theirs) for _, theirs in pairs]
    # Spawned, not forked: no process begins with another one's memory.
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
        # Held here, they would keep a process waiting for a peer that has died.
        for pair in pairs:
            for link in pair:
                link.close()
        sent, *received = [answer.recv() for answer in answers]
    return sent, received


def _linked(name: str) -> tuple[Link, Link]:
    control, data, bare = multiprocessing.Pipe(), socket.socketpair(), socket.socketpair()
    return Link(name, control[0], data[0], bare[0]), Link(name, control[1], data[1], bare[1])


def _run(answer: Connection, job: Callable[..., Any], *args: Any) -> None:
    answer.send(job(*args))


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        what: what was measured.
        figure: what came out.
        limit: what it is held against, measured in the same run or set as a target.
        ratio: the figure over the limit.
        least: the smallest ratio that is good enough, or None if less is better.
        most: the largest ratio that is good enough, or None if more is better.
    """

    what: str
    figure: str
    limit: str
    ratio: float
    least: float | None = None
    most: float | None = None

    @property
    def is_met(self) -> bool:
        """Whether the ratio is good enough."""
        # As it is printed, so that no line says that 0.80 is less than 0.8.
        ratio = round(self.ratio, 2)
        return (self.least is None or ratio >= self.least) and (
            self.most is None or ratio <= self.most
        )

    @property
    def cells(self) -> tuple[str, ...]:
        """What is printed."""
        bounds = [
            f"{sign} {bound:g}"
            for sign, bound in ((">=", self.least), ("<=", self.most))
            if bound is not None
        ]
        verdict = "" if self.is_met else "missed"
        return self.what, self.figure, self.limit, f"{self.ratio:.2f}", " ".join(bounds), verdict


def print_table(rows: Iterable[Row]) -> None:
    """Print the rows in columns."""
    lines = [("what", "figure", "limit", "ratio", "target", ""), *(row.cells for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())
