"""Arrays that are stored in Fortran order, read in C order."""

from __future__ import annotations

import math
import os
import tempfile
import weakref
from collections.abc import Callable
from typing import IO

import numpy as np

from flstream.errors import CheckpointError
from flstream.model.descriptors import read_at
from flstream.model.dtypes import BY_CODE, bits_dtype
from flstream.model.layout import TensorInfo

# Bytes of the rows that are read at once. In the file they are in as many pieces as a row has
# elements, so a smaller slab means more reads. Converting a slab needs its size again.
_SLAB_BYTES = 8 << 20


class FortranArray:
    """An array in Fortran order, whose rows are gathered a slab at a time to save memory.

    Args:
        spec: Array of at least two dimensions that are not 1, and not empty.
        where: Names of the file and the tensor, for messages.
        fd: Descriptor of the file.
        start: Offset in bytes of the first element in the file.
        file: File object to be kept open as long as the array is read.

    Raises:
        CheckpointError: A row is larger than a slab (8 MiB).
    """

    def __init__(
        self, spec: TensorInfo, where: str, fd: int, start: int, file: IO[bytes] | None = None
    ) -> None:
        self._where = where
        self._fd = fd
        self._start = start
        if file is not None:
            weakref.finalize(self, file.close)
        self._rows = spec.shape[0]
        self._inner = spec.shape[1:]
        self._dtype = bits_dtype(BY_CODE[spec.dtype].itemsize)
        self._row_bytes = math.prod(self._inner) * self._dtype.itemsize
        if self._row_bytes > _SLAB_BYTES:
            raise CheckpointError(
                f"{where} lies in Fortran order with rows of {self._row_bytes} bytes, too long to "
                "be turned around in little memory; save it after np.ascontiguousarray"
            )
        self._first = 0
        self._slab = memoryview(b"")

    @classmethod
    def from_stream(
        cls, spec: TensorInfo, where: str, write: Callable[[IO[bytes]], None]
    ) -> FortranArray:
        """Make the array of a compressed member, by inflating it into an unnamed temporary file.

        Raises:
            CheckpointError: There is no room for the file.
        """
        try:
            file = tempfile.TemporaryFile(prefix="flstream-")  # noqa: SIM115 - it is kept
            turned = cls(spec, where, file.fileno(), 0, file)
            os.posix_fallocate(file.fileno(), 0, spec.nbytes)
            write(file)
            file.flush()
        except OSError as error:
            raise CheckpointError(
                f"{where} lies compressed and in Fortran order, and {tempfile.gettempdir()} has no "
                f"room for its {spec.nbytes} bytes: {error.strerror}; set TMPDIR to another folder"
            ) from error
        return turned

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill a view with the array's bytes in C order, from ``offset`` on."""
        while len(view):
            within = offset - self._first * self._row_bytes
            if not 0 <= within < len(self._slab):
                self._load(offset // self._row_bytes)
                within = offset - self._first * self._row_bytes
            part = self._slab[within : within + len(view)]
            view[: len(part)] = part
            view, offset = view[len(part) :], offset + len(part)

    def _load(self, first: int) -> None:
        self._slab = memoryview(b"")  # freed before the next one is allocated
        rows = min(max(1, _SLAB_BYTES // self._row_bytes), self._rows - first)
        size = self._dtype.itemsize
        columns = self._row_bytes // size
        gathered = memoryview(bytearray(rows * self._row_bytes))
        if rows == self._rows:
            self._fill(gathered, 0)
        else:
            piece = rows * size
            for column in range(columns):
                at = (column * self._rows + first) * size
                self._fill(gathered[column * piece : (column + 1) * piece], at)
        turned = np.frombuffer(gathered, self._dtype).reshape((*reversed(self._inner), rows)).T
        self._first, self._slab = (
            first,
            np.ascontiguousarray(turned).reshape(-1).view(np.uint8).data,
        )

    def _fill(self, view: memoryview, at: int) -> None:
        try:
            count = read_at(self._fd, view, self._start + at)
        except OSError as error:
            raise CheckpointError(f"{self._where} cannot be read: {error.strerror}") from error
        if count < len(view):
            raise CheckpointError(f"{self._where} is cut short; fetch the file again")
