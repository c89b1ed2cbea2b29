"""A process of a workflow's own, beside the server's: its messages, and its end."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

from flstream.errors import ChannelClosedError, SimulationError
from flstream.server.context import ServerContext
from flstream.telemetry.events import ProcessStarted
from flstream.telemetry.limit_kills import LimitKills
from flstream.text import how_ended
from flstream.transport.messages import MessageChannel

MessageT = TypeVar("MessageT")

_MAIN = "flstream.simulation.own_process:main"

# Time for a process to end whose end of the socket is closed.
_END_SECONDS = 2.0


class OwnProcess(Generic[MessageT]):
    """Process that runs a function for a workflow, and ends when this object is closed.

    Its memory is in the run's samples, and its output in a log of its name.

    Args:
        context: The server.
        name: Name of the process and of its log.
        kinds: Union of the types of messages that it sends.
        target: Its function, ``package.module:name``, of a socket and ``args``.
        args: Further arguments of the function; must be picklable.
    """

    def __init__(
        self, context: ServerContext, name: str, kinds: Any, target: str, *args: Any
    ) -> None:
        assert context.host is not None, "a dry run starts no process"
        self._name, self._abort, self._kills = name, context.abort, LimitKills()
        ours, theirs = socket.socketpair()
        self._channel = MessageChannel[MessageT](ours, name, kinds)
        log = context.run.log(name)
        with theirs:
            self._process = context.host.start(name, _MAIN, target, args, log, theirs)
        if self._process.pid:  # inline, all of it is one process
            context.emit(ProcessStarted(process=name, pid=self._process.pid))

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; one that the process does not take any more is lost."""
        with suppress(ChannelClosedError):
            self._channel.send(message, timeout=None)

    def receive(self) -> MessageT:
        """Wait for the next message of the process.

        Raises:
            SimulationError: It has ended without one; the message names its log.
        """
        try:
            return self._channel.receive(None, self._abort)
        except ChannelClosedError:
            code = self._process.exit_code(_END_SECONDS)
            how = "has hung up" if code is None else how_ended(code)
            if code == -signal.SIGKILL:
                how += self._kills.clause()
            raise SimulationError(
                f"the process {self._name} {how}; see {self._name}.log, and go on with --resume"
            ) from None

    def close(self) -> None:
        """Close the socket, with which the process ends."""
        self._channel.close()
