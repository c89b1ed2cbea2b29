"""Processes that run a function of a socket, or a plain one: their messages, and their end."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Generic, TypeVar

import msgspec

from flstream import errors
from flstream.debugging import code_failed
from flstream.engines.processes import ProcessHost
from flstream.errors import ChannelClosedError, FlstreamError, SimulationError
from flstream.telemetry.memory_group import LimitKills
from flstream.text import how_ended
from flstream.transport.channel import AbortSignal
from flstream.transport.messages import MessageChannel

MessageT = TypeVar("MessageT")
ValueT = TypeVar("ValueT")

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


class _Answer(msgspec.Struct, frozen=True):
    """Returned value of a function, or the name and message of its error."""

    value: msgspec.Raw
    error: str = ""
    message: str = ""


class ProcessCall(ChildProcess[_Answer], Generic[ValueT]):
    """Call of a function in a process, which ends when this object is closed.

    Args:
        host: Host of the process.
        name: Name of the process.
        kind: Type of the returned value.
        target: The function, ``package.module:name``, of ``args``.
        args: Arguments of the function; must be picklable.
        how: The log and the signal of :class:`ChildProcess`.
    """

    def __init__(
        self, host: ProcessHost, name: str, kind: Any, target: str, *args: Any, **how: Any
    ) -> None:
        super().__init__(host, name, _Answer, f"{__name__}:_answer", target, *args, **how)
        self._kind = kind

    def result(self, seconds: float | None = None) -> ValueT:
        """Wait for the function's result, ``seconds`` at most, and close this call.

        Raises:
            EndedProcessError: The process has ended without an answer.
            FlstreamError: The function has failed.
        """
        try:
            answer = self.receive(seconds)
        finally:
            self.close()
        if (kind := getattr(errors, answer.error, None)) is not None:
            raise kind(answer.message)
        if answer.error:
            raise SimulationError(f"{self._name} failed: {answer.error}: {answer.message}")
        value: ValueT = msgspec.msgpack.decode(answer.value, type=self._kind)
        return value


def _answer(caller: socket.socket, target: str, *args: Any) -> None:
    """Call a function, and send its value or its error."""
    try:
        answer = _Answer(msgspec.Raw(msgspec.msgpack.encode(resolve_name(target)(*args))))
    except Exception as error:
        if not isinstance(error, FlstreamError):
            code_failed(error)
        answer = _Answer(msgspec.Raw(b"\xc0"), type(error).__name__, str(error))
    MessageChannel[_Answer](caller, "the caller", _Answer).send(answer)
