"""Calls of functions in processes, each of which answers once and ends."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Generic, TypeVar

import msgspec

from flstream import errors
from flstream.debugging import code_failed
from flstream.engines.processes import ProcessHost
from flstream.errors import ChannelClosedError, FlstreamError, SimulationError
from flstream.telemetry.limit_kills import LimitKills
from flstream.text import how_ended
from flstream.transport.channel import AbortSignal
from flstream.transport.messages import MessageChannel

# Time for a process to end whose end of the socket is closed.
_END_SECONDS = 2.0

ValueT = TypeVar("ValueT")


class NoAnswerError(SimulationError):
    """A process has ended without an answer; the message says how it ended."""


class _Answer(msgspec.Struct, frozen=True):
    """Returned value of a function, or the name and message of its error."""

    value: msgspec.Raw
    error: str = ""
    message: str = ""


class ProcessCall(Generic[ValueT]):
    """Call of a function in a process, which ends when this object is closed."""

    def __init__(
        self,
        host: ProcessHost,
        name: str,
        kind: Any,
        target: str,
        *args: Any,
        log: Path = Path(os.devnull),
    ) -> None:
        self._name, self._kind, self._kills = name, kind, LimitKills()
        ours, theirs = socket.socketpair()
        self._channel = MessageChannel[_Answer](ours, name, _Answer)
        with theirs:
            try:
                self.process = host.start(name, f"{__name__}:_main", target, args, log, theirs)
            except BaseException:
                self.close()
                raise

    def result(self, abort: AbortSignal | None = None, seconds: float | None = None) -> ValueT:
        """Wait for the function's result, ``seconds`` at most, and close this call."""
        try:
            answer = self._channel.receive(seconds, abort)
        except ChannelClosedError:
            code = self.process.exit_code(_END_SECONDS)
            how = "has hung up" if code is None else how_ended(code)
            if code == -signal.SIGKILL:
                how += (
                    self._kills.clause() or ": the machine may have too little memory for the model"
                )
            raise NoAnswerError(how) from None
        finally:
            self.close()
        if (kind := getattr(errors, answer.error, None)) is not None:
            raise kind(answer.message)
        if answer.error:
            raise SimulationError(f"{self._name} failed: {answer.error}: {answer.message}")
        value: ValueT = msgspec.msgpack.decode(answer.value, type=self._kind)
        return value

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
    try:
        answer = _Answer(msgspec.Raw(msgspec.msgpack.encode(resolve_name(target)(*args))))
    except Exception as error:
        if not isinstance(error, FlstreamError):
            code_failed(error)
        answer = _Answer(msgspec.Raw(b"\xc0"), type(error).__name__, str(error))
    MessageChannel[_Answer](caller, "the caller", _Answer).send(answer)
    if this_place() is None:
        sys.stdout.flush()
        os._exit(0)  # threads of the user's code may never end
