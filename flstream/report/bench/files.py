"""Output files of a bench: checked before minutes of measuring, and replaced atomically."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from flstream.errors import UsageError

PICTURES = (".png", ".svg", ".pdf")
"""Formats of a plot, by the ending of the file's name."""


class Target:
    """An output file that is written at the end of a bench.

    An existing file is replaced only then. Something other than a file, such as a pipe, is written
    to directly.

    Args:
        option: option of the command line that named the file, for error messages.
        path: path of the file.

    Raises:
        UsageError: the file cannot be written.
    """

    def __init__(self, option: str, path: Path) -> None:
        self._option = option
        self._path = path
        self._is_plain = not path.exists() or path.is_file()
        if path.is_dir():
            raise UsageError(f"{option} {path}: is a folder; name a file")
        try:
            if self._is_plain:
                # Tests what `write` does: create a file beside this one, which then replaces it.
                fd, temporary = tempfile.mkstemp(dir=path.parent)
                os.close(fd)
                os.unlink(temporary)
            elif not os.access(path, os.W_OK):
                raise PermissionError(13, "it may not be written to")
        except OSError as error:
            raise self._refused(error) from error

    def write(self, make: Callable[[Path], None]) -> None:
        """Write the file.

        Args:
            make: function that writes the content to a file at a given path.

        Raises:
            UsageError: the file cannot be written.
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
