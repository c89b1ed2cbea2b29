"""A process that runs a function of a socket: its messages, and its end."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from flstream.engines.processes import ProcessHost
from flstream.errors import ChannelClosedError, SimulationError
from flstream.telemetry.memory_group import LimitKills
from flstream.text import how_ended
from flstream.transport.channel import AbortSignal
from flstream.transport.messages import MessageChannel

MessageT = TypeVar("MessageT")

_MAIN = "flstream.simulation.child:main"

# Time for a process to end whose end of the socket is closed.
_END_SECONDS = 2.0


class EndedProcessError(SimulationError):
    """A process has ended without a message.

    Attributes:
        how: Clause that says how it ended.
    """

    def __init__(self, name: str, how: str) -> None:
        super().__init__(f"the process {name} {how}; see {name}.log, and go on with --resume")
        self.how = how


class ChildProcess(Generic[MessageT]):
    """Process that runs a function, and ends when this object is closed.

    Args:
        host: Host of the process.
        name: Name of the process.
        kinds: Union of the types of messages that it sends.
        target: Its function, ``package.module:name``, of a socket and ``args``.
        args: Further arguments of the function; must be picklable.
        log: File of its output.
        abort: Signal at which nobody waits for it any more; None for none.

    Attributes:
        pid: Its pid; 0 inline, where it is a thread of this process.
    """

    def __init__(
        self,
        host: ProcessHost,
        name: str,
        kinds: Any,
        target: str,
        *args: Any,
        log: Path = Path(os.devnull),
        abort: AbortSignal | None = None,
    ) -> None:
        self._name, self._abort, self._kills = name, abort, LimitKills()
        ours, theirs = socket.socketpair()
        self._channel = MessageChannel[MessageT](ours, name, kinds)
        with theirs:
            try:
                self._process = host.start(name, _MAIN, target, args, log, theirs)
            except BaseException:
                self.close()
                raise
        self.pid = self._process.pid

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; one that the process does not take any more is lost."""
        with suppress(ChannelClosedError):
            self._channel.send(message, timeout=None)

    def receive(self, seconds: float | None = None) -> MessageT:
        """Wait for the next message of the process, ``seconds`` at most.

        Raises:
            EndedProcessError: It has ended without one.
            DeadlineError: None came in time.
        """
        try:
            return self._channel.receive(seconds, self._abort)
        except ChannelClosedError:
            code = self._process.exit_code(_END_SECONDS)
            how = "has hung up" if code is None else how_ended(code)
            if code == -signal.SIGKILL:
                how += self._kills.clause() or ": the machine may have too little memory"
            raise EndedProcessError(self._name, how) from None

    def close(self) -> None:
        """Close the socket, with which the process ends."""
        self._channel.close()
