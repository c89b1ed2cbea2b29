"""Standard streams of a process whose output goes to a log, which may be on a full disk."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from flstream.text import printable_path


def use_log_streams() -> None:
    """Make new standard streams of descriptors 1 and 2, which have been pointed at a log.

    Both write each line at once. What cannot be written to stderr is left out, since the reason of
    a failure matters more than that its traceback is in the log; to stdout it is an error with the
    path of the log.
    """
    # New ones also because a process that was started without a stdout has none.
    sys.stdout = _stream(_LogFile(1, "w", closefd=False))
    sys.stderr = _stream(_LenientLogFile(2, "w", closefd=False))


def flush_streams() -> None:
    """Write what is left of a line; what cannot be written is dropped, so that no other log has it.

    The descriptors may be pointed elsewhere then.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with _to_nowhere(stream), suppress(OSError):
                stream.flush()


class _LogFile(io.FileIO):
    """A log whose errors name it."""

    def write(self, data: object, /) -> int:
        """Write some bytes.

        Raises:
            OSError: They cannot be written; it has the path of the log.
        """
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            if error.errno is None or isinstance(error, BlockingIOError):
                raise
            raise OSError(error.errno, error.strerror, _path_of(self.fileno())) from None


class _LenientLogFile(io.FileIO):
    """A log that takes no harm where it cannot be written."""

    def write(self, data: object, /) -> int:
        """Write some bytes, or as many of them as can be written, and say that all were."""
        with suppress(OSError):
            super().write(data)  # type: ignore[arg-type]
        return memoryview(data).nbytes  # type: ignore[arg-type]


def _stream(raw: io.FileIO) -> TextIO:
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffered, errors="backslashreplace", line_buffering=True)


@contextmanager
def _to_nowhere(stream: TextIO) -> Iterator[None]:
    """Point the descriptor of a stream at the null device."""
    before, nowhere = os.dup(stream.fileno()), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(before, stream.fileno())
        os.close(before)


def _path_of(descriptor: int) -> str:
    try:
        return printable_path(os.readlink(f"/proc/self/fd/{descriptor}"))
    except OSError:
        return "its log"
