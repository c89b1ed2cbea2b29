"""Standard streams of the command line, where they are closed or not writable."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class StandardStream(io.FileIO):
    """Stream that discards output that cannot be written, and keeps the error.

    A reader that has closed its pipe is not such an error: it has what it wanted.

    Attributes:
        error: The first error; None without one.
        is_spare: Whether what is printed can be had elsewhere, so that its loss fails nothing.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "w", closefd=False)
        self.error: OSError | None = None
        self.is_spare = False

    def write(self, data: ReadableBuffer, /) -> int:
        """Write bytes, or discard them."""
        try:
            return super().write(data)
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.error = self.error or error
            return memoryview(data).nbytes


def open_output() -> StandardStream:
    """Make stdout and stderr a :class:`StandardStream` each; closed ones discard.

    Otherwise the next files and pipes would take the places of closed ones, and what is printed
    would go there; and an error that cannot be written would become another exit status. A name
    that the terminal's encoding lacks is shown escaped. What a caller in this process has put in
    the place of ``sys.stdout`` or ``sys.stderr`` stays there.

    Returns:
        Standard output.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free: this one
            os.set_inheritable(fd, True)
    output = StandardStream(1)
    if sys.stdout is sys.__stdout__:  # closed, it is None
        sys.stdout = _text(output, sys.stdout, line_buffering=output.isatty())
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(StandardStream(2), sys.stderr, line_buffering=True)
    return output


def _text(stream: StandardStream, before: TextIO | None, *, line_buffering: bool) -> TextIO:
    """Return a text stream in the encoding of the stream that it replaces."""
    return io.TextIOWrapper(
        io.BufferedWriter(stream),
        encoding=getattr(before, "encoding", None),
        errors="backslashreplace",
        line_buffering=line_buffering,
    )


@contextmanager
def diverted(log: Path) -> Iterator[TextIO]:
    """Divert other code's output to a log, and yield a stream to standard output.

    Output of C code is diverted, too, until the block ends. Descriptor 1 stays with the log also
    after that: a thread that does not end may still print.
    """
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    output, errors = os.dup(1), os.dup(2)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    try:
        stream = StandardStream(output)
        yield _text(stream, sys.stdout, line_buffering=stream.isatty())
    finally:
        sys.stderr.flush()
        os.dup2(errors, 2)
        os.close(errors)


def spare_output() -> None:
    """Note that output from here on is available elsewhere, too."""
    output = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(output, StandardStream):
        output.is_spare = True
