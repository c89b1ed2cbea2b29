"""NumPy's ``.npz`` format: arrays in a zip archive, read without unpickling."""

from __future__ import annotations

import io
import math
import warnings
from pathlib import Path
from typing import IO, Any

import numpy as np

from flstream.errors import CheckpointError, LayoutError
from flstream.model.dtypes import code_of
from flstream.model.formats.archive import AGAIN, Archive, Member
from flstream.model.formats.file import Format, check_expansion, read_parts
from flstream.model.formats.fortran import FortranArray
from flstream.model.header import check_name
from flstream.model.layout import Layout, TensorInfo

_SUFFIX = ".npy"
# NumPy reads a header of any stated length before checking it, so it is given this much.
_MOST_HEADER_BYTES = 32 << 10
_STEP = 1 << 20


class _Array:
    """The place of an array in the archive.

    Attributes:
        member: Member of the archive.
        head: Length in bytes of its ``.npy`` header.
        column_major: Whether its elements are in Fortran order.
        fortran: Reader of an array in Fortran order, made when it is first read.
    """

    def __init__(self, member: Member, head: int, column_major: bool) -> None:
        self.member = member
        self.head = head
        self.column_major = column_major
        self.fortran: FortranArray | None = None


def _read_head(text: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read shape, whether it is in Fortran order, and dtype; leave the stream at the elements."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a file that Python 2 wrote, for example
        version = np.lib.format.read_magic(text)
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(text)
        if version == (2, 0):
            return np.lib.format.read_array_header_2_0(text)
    raise ValueError(f"version {version[0]}.{version[1]} is not that of an array of numbers")


class _Cursor:
    """The position in a compressed member that is being read from front to back."""

    def __init__(self, member: Member, stream: IO[bytes]) -> None:
        self.member = member
        self.stream = stream
        self.at = 0


class NpzFile:
    """The arrays of an ``.npz`` file, as tensors in C order.

    Stored arrays are read in place. Compressed ones are inflated range by range, again from the
    front whenever an earlier range is read. Arrays in Fortran order are converted a slab at a time.

    Raises:
        CheckpointError: The archive is not sound, or a member is not an array of numbers.
        LayoutError: A body cannot hold an array's type.
    """

    format: Format = "npz"

    def __init__(self, path: Path) -> None:
        self._archive = Archive(path)
        self._cursor: _Cursor | None = None
        self._arrays: dict[str, _Array] = {}
        self.path = path
        self.metadata: dict[str, str] = {}
        self.files = (path,)
        self.file_bytes = self._archive.file_bytes
        specs: list[TensorInfo] = []
        for member in self._archive.members.values():
            specs.append(self._describe(member, specs[-1].stop if specs else 0))
        self.layout = Layout(specs)
        stored = sum(array.member.stored for array in self._arrays.values())
        heads = sum(array.head for array in self._arrays.values() if not array.member.compressed)
        self.header_bytes = self.file_bytes - stored + heads
        check_expansion(path, self.layout, self.file_bytes)

    def _describe(self, member: Member, start: int) -> TensorInfo:
        where = f"{self.path}: the member {member.name!r}"
        if not member.name.endswith(_SUFFIX):
            raise CheckpointError(f"{where} is no {_SUFFIX} array; save the arrays with np.savez")
        name = member.name.removesuffix(_SUFFIX)
        text = io.BytesIO(self._archive.head(member, _MOST_HEADER_BYTES))
        try:
            check_name(name)
            shape, column_major, dtype = _read_head(text)
        except LayoutError as error:
            raise CheckpointError(f"{where}: {error}") from error
        # The header is a Python literal, which can be wrong in any way.
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
            flaw = str(error).partition("\n")[0]
            raise CheckpointError(f"{where} has no sound .npy header: {flaw}; {AGAIN}") from error
        if dtype.hasobject:
            raise CheckpointError(
                f"{where} holds Python objects, which only unpickling could read; "
                "save it as an array of numbers"
            )
        if dtype.shape or any(type(size) is not int or not 0 <= size < 2**63 for size in shape):
            raise CheckpointError(f"{where} has the shape {shape}, which is none; {AGAIN}")
        try:
            code = code_of(np.empty(0, dtype), name)
        except LayoutError as error:
            raise LayoutError(f"{self.path}: {error}") from error
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes != member.size - text.tell():
            raise CheckpointError(
                f"{where} has {member.size - text.tell()} bytes of elements where its shape "
                f"{list(shape)} takes {nbytes}; {AGAIN}"
            )
        several = sum(size > 1 for size in shape) > 1
        self._arrays[name] = _Array(member, text.tell(), bool(column_major) and several)
        return TensorInfo(name, code, tuple(shape), start, start + nbytes)

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Read the bytes ``[start, stop)``."""
        read_parts(self.layout, start, stop, into, self._read)

    def _read(self, spec: TensorInfo, view: memoryview, offset: int) -> None:
        array = self._arrays[spec.name]
        if array.column_major:
            if array.fortran is None:
                # One at a time, since each keeps a slab.
                for other in self._arrays.values():
                    other.fortran = None
                array.fortran = self._column_major(spec, array)
            array.fortran.read_into(view, offset)
        elif array.member.compressed:
            self._inflate(array.member, view, array.head + offset)
        else:
            self._archive.read_stored(array.member, view, array.head + offset)

    def _inflate(self, member: Member, view: memoryview, offset: int) -> None:
        cursor = self._cursor
        if cursor is None or cursor.member is not member or cursor.at > offset:
            cursor = self._cursor = _Cursor(member, self._archive.open(member))
        while cursor.at < offset:
            skipped = memoryview(bytearray(min(offset - cursor.at, _STEP)))
            self._archive.read_into(cursor.stream, member, skipped)
            cursor.at += len(skipped)
        self._archive.read_into(cursor.stream, member, view)
        cursor.at += len(view)

    def _column_major(self, spec: TensorInfo, array: _Array) -> FortranArray:
        member = array.member
        where = f"{self.path}: tensor {spec.name!r}"
        if not member.compressed:
            return FortranArray(spec, where, self._archive.fd, member.start + array.head)

        def write(file: IO[bytes]) -> None:
            for at in range(0, spec.nbytes, _STEP):
                view = memoryview(bytearray(min(_STEP, spec.nbytes - at)))
                self._inflate(member, view, array.head + at)
                file.write(view)

        return FortranArray.from_stream(spec, where, write)

    def check(self) -> list[str]:
        """Check the archive, and describe what was checked when it was opened."""
        return [
            self._archive.check(),
            "every member is an array of numbers with the bytes that its dtype and shape take",
        ]
