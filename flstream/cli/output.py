"""The standard streams of the command line, where they are closed or cannot be written."""

from __future__ import annotations

import io
import os
import sys


class StandardOutput(io.FileIO):
    """Standard output that discards what cannot be written, as on a full disk, and keeps the error.

    A reader that has closed its pipe is not such an error: it has what it wanted.

    Attributes:
        error: The first error; None without one.
        is_spare: Whether what is printed can be had elsewhere, so that its loss fails nothing.
    """

    def __init__(self) -> None:
        super().__init__(1, "w", closefd=False)
        self.error: OSError | None = None
        self.is_spare = False

    def write(self, data: bytes | bytearray | memoryview, /) -> int | None:  # type: ignore[override]
        """Write bytes, or discard them."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            self.error = self.error or error
            return len(data)

    def finish(self) -> None:
        """Write what is still to be written; where nobody reads it any more, discard it."""
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            # For the interpreter's own flush at its end.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)


def open_output() -> StandardOutput:
    """Make ``sys.stdout`` a :class:`StandardOutput`, and closed standard streams the null device.

    Otherwise the next files and pipes would take the places of closed ones, and what is printed
    would go there. A name that the terminal's encoding lacks is shown escaped. What a caller in
    this process has put in the place of ``sys.stdout`` stays there.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free: this one
            os.set_inheritable(fd, True)
    output = StandardOutput()
    if sys.stdout is sys.__stdout__:
        encoding = getattr(sys.stdout, "encoding", None)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(output),
            encoding=encoding,
            errors="backslashreplace",
            line_buffering=output.isatty(),
        )
    if isinstance(sys.stderr, io.TextIOWrapper):  # closed, it is None
        sys.stderr.reconfigure(errors="backslashreplace")
    return output


def spare_output() -> None:
    """Say that what is printed from here on can be had elsewhere."""
    output = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(output, StandardOutput):
        output.is_spare = True
