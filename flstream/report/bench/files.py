"""Where a bench writes what it found: checked before minutes of measuring, and written whole."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from flstream.errors import UsageError

PICTURES = (".png", ".svg", ".pdf")
"""What a picture may be, by the ending of its name."""


class Target:
    """A file that is to be written at the end.

    A file of that name keeps what it has until then. What is no file, such as a pipe, is written to
    as it is.

    Args:
        option: of the command line, for messages.
        path: of the file.

    Raises:
        UsageError: it cannot be written.
    """

    def __init__(self, option: str, path: Path) -> None:
        self._option = option
        self._path = path
        self._is_plain = not path.exists() or path.is_file()
        if path.is_dir():
            raise UsageError(f"{option} {path}: is a folder; name a file")
        try:
            if self._is_plain:
                # As the end does it: beside the file, which is then replaced in one step.
                fd, temporary = tempfile.mkstemp(dir=path.parent)
                os.close(fd)
                os.unlink(temporary)
            elif not os.access(path, os.W_OK):
                raise PermissionError(13, "it may not be written to")
        except OSError as error:
            raise self._refused(error) from error

    def write(self, make: Callable[[Path], None]) -> None:
        """Have the file made, and give it its name.

        Args:
            make: writes the file at the path that it is given.

        Raises:
            UsageError: it could not be written.
        """
        if not self._is_plain:
            self._make(make, self._path)
            return
        real = Path(os.path.realpath(self._path))
        temporary = real.with_name(f".{real.name}.{os.getpid()}.tmp")
        try:
            self._make(make, temporary)
            temporary.replace(real)
        finally:
            temporary.unlink(missing_ok=True)

    def _make(self, make: Callable[[Path], None], path: Path) -> None:
        try:
            make(path)
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> UsageError:
        return UsageError(f"{self._option} {self._path}: cannot be written: {error.strerror}")
