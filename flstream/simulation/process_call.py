"""Calls of functions in processes of their own, each of which answers once and ends."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Generic, TypeVar

import msgspec

from flstream.engines.processes import ProcessHost
from flstream.errors import ChannelClosedError
from flstream.text import how_ended
from flstream.transport.channel import AbortSignal
from flstream.transport.messages import MessageChannel

# Time for a process to end whose end of the socket is closed.
_END_SECONDS = 2.0

AnswerT = TypeVar("AnswerT")


class ProcessCall(Generic[AnswerT]):
    """Call of a function in a process of its own, which ends when this is closed.

    Args:
        host: Host of the process.
        name: Name of the process.
        log: Path of the log for its output.
        kinds: Union of the types of the answer, equal to ``AnswerT``.
        target: The function, as ``package.module:name``.
        *args: Arguments of the function, without sockets.

    Attributes:
        process: The process.
    """

    def __init__(
        self, host: ProcessHost, name: str, log: Path, kinds: Any, target: str, *args: Any
    ) -> None:
        ours, theirs = socket.socketpair()
        self._channel = MessageChannel[AnswerT](ours, name, kinds)
        with theirs:
            try:
                self.process = host.start(name, f"{__name__}:_main", target, args, log, theirs)
            except BaseException:
                self.close()
                raise

    def result(
        self, abort: AbortSignal | None = None, seconds: float | None = None
    ) -> AnswerT | int | None:
        """Wait for the answer.

        Args:
            abort: Signal to stop; None for none.
            seconds: How long it may take; None is without limit.

        Returns:
            The answer; without one, the exit code of the process, or None if it does not end.

        Raises:
            AbortedError: The signal was set before the answer came.
            DeadlineError: It took too long; the process goes on.
        """
        try:
            return self._channel.receive(seconds, abort)
        except ChannelClosedError:
            return self.process.exit_code(_END_SECONDS)

    @staticmethod
    def ended(code: int | None) -> str:
        """Return how a process without an answer has ended, given the result of its call."""
        return "has hung up" if code is None else how_ended(code)

    def close(self) -> None:
        """Close the socket, with which the process ends."""
        self._channel.close()


def _main(target: str, args: Sequence[Any], log: Path, caller: socket.socket) -> None:
    """Run the process: call the function, send its answer, and end."""
    # Imported here, as the launcher does not need what the processes do.
    from flstream.simulation.child import end_with_peer, ignore_interrupts, redirect_output
    from flstream.simulation.places import this_place

    ignore_interrupts()
    redirect_output(log)
    end_with_peer(caller)
    answer: msgspec.Struct = resolve_name(target)(*args)
    name = "the caller"
    MessageChannel[msgspec.Struct](caller, name, msgspec.Struct).send(answer)
    if this_place() is None:
        sys.stdout.flush()
        os._exit(0)  # threads of the user's code may never end
