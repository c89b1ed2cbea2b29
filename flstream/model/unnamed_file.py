"""A body in a file without a name: sink and source, gone with the process whatever ends it."""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path
from typing import IO

from flstream.errors import CheckpointError
from flstream.model.descriptors import read_at, write_at
from flstream.model.layout import Layout
from flstream.model.source import Scratch


class UnnamedFile:
    """A body for a while, in pages that the kernel may put on the disk, and that no process has.

    Threads may read it at once.

    Attributes:
        layout: Tensors of the body.

    Args:
        layout: Tensors of the body.
        folder: Folder of the file system that has the bytes.

    Raises:
        CheckpointError: The disk has no room for it, or the folder cannot be written to.
    """

    is_used = False

    def __init__(self, layout: Layout, folder: Path) -> None:
        self.layout = layout
        self._scratch = Scratch()
        self._view = memoryview(b"")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                if layout.nbytes:
                    # A full disk is found before the work is done, not after.
                    os.posix_fallocate(file.fileno(), 0, layout.nbytes)
                self._fd = os.dup(file.fileno())
        except OSError as error:
            raise CheckpointError(
                f"{folder} has no room for {layout.nbytes} bytes: {error.strerror}; "
                "free some, or choose another disk with --run-dir"
            ) from error
        weakref.finalize(self, os.close, self._fd)

    def open(self) -> IO[bytes]:
        """Return the body as a file to read, from its beginning."""
        return open(os.dup(self._fd), "rb")

    def views(self, start: int, stop: int) -> list[memoryview]:
        """Return a buffer for the bytes ``[start, stop)``, valid until the next call."""
        self._view = self._scratch.take(stop - start)
        return [self._view]

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Read the bytes ``[start, stop)``.

        Raises:
            CheckpointError: The file cannot be read.
        """
        try:
            read_at(self._fd, into, start)
        except OSError as error:
            raise CheckpointError(
                f"bytes {start} to {stop} of a received model cannot be read: {error.strerror}"
            ) from error

    def commit(self, start: int, stop: int) -> None:
        """Write the buffer's bytes to their place in the file.

        Raises:
            CheckpointError: The disk refused them.
        """
        try:
            write_at(self._fd, self._view, start)
        except OSError as error:
            raise CheckpointError(
                f"bytes {start} to {stop} of a received model cannot be written: {error.strerror}"
            ) from error
