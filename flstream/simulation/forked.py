"""A call in a fork of this process, which stays as it was."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

from flstream.engines.fork_server import end_with_parent

ValueT = TypeVar("ValueT")


class ForkedError(Exception):
    """The function has raised an error; the message is that of the error."""


def forked(function: Callable[[], ValueT]) -> ValueT:
    """Call a function in a fork, and return its value, which is pickled.

    Where the fork is killed, as for want of memory, this process ends by the same signal.

    Raises:
        ForkedError: It has raised an error of any kind.
    """
    reader, writer = os.pipe()
    own = os.getpid()
    if not (pid := os.fork()):
        os.close(reader)
        _answer(function, writer, own)
    os.close(writer)
    with open(reader, "rb") as file:
        content = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        os.kill(own, -code)
    if not content:
        raise ForkedError(f"it exits with status {code}")
    # Of this process's own fork, by a pipe that nobody else has.
    answer: tuple[str | None, ValueT] = pickle.loads(content)
    if answer[0] is not None:
        raise ForkedError(answer[0])
    return answer[1]


def _answer(function: Callable[[], object], writer: int, parent: int) -> NoReturn:
    """Write the value of a function, or its error, to a pipe, and end this process."""
    end_with_parent(parent)
    status = 1
    try:
        try:
            content = pickle.dumps((None, function()))
        except BaseException as error:
            content = pickle.dumps((str(error) or type(error).__name__, None))
        with open(writer, "wb") as file:
            file.write(content)
        status = 0
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)
