"""Calls of functions in processes, each of which answers once and ends."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Generic, TypeVar

import msgspec

from flstream import errors
from flstream.debugging import code_failed
from flstream.engines.child_process import ChildProcess
from flstream.engines.processes import ProcessHost
from flstream.errors import FlstreamError, SimulationError
from flstream.transport.channel import AbortSignal
from flstream.transport.messages import MessageChannel

ValueT = TypeVar("ValueT")


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
        log: File of the process's output.
        abort: Signal at which nobody waits for it any more; None for none.
    """

    def __init__(
        self,
        host: ProcessHost,
        name: str,
        kind: Any,
        target: str,
        *args: Any,
        log: Path = Path(os.devnull),
        abort: AbortSignal | None = None,
    ) -> None:
        answer, call = f"{__name__}:_answer", (target, *args)
        super().__init__(host, name, _Answer, answer, *call, log=log, abort=abort)
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
