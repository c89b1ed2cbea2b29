"""NumPy's ``.npz`` format: arrays in a zip archive, read without unpickling."""

from __future__ import annotations

import math
import warnings
import zipfile
from pathlib import Path

import numpy as np

from flstream.errors import CheckpointError, LayoutError
from flstream.model.dtypes import BY_CODE, code_of
from flstream.model.formats.opening import AGAIN, CheckpointFile, open_archive, reading
from flstream.model.header import TensorInfo, check_name
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody

_SUFFIX = ".npy"


def open_npz(path: Path) -> CheckpointFile:
    """Open the arrays of an ``.npz`` file, as tensors in C order."""
    specs: list[TensorInfo] = []
    with open_archive(path, "save the arrays with np.savez") as archive:
        for member in archive.infolist():
            specs.append(_describe(path, archive, member, specs[-1].stop if specs else 0))
        stored = sum(member.compress_size for member in archive.infolist())
        is_stored = all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
    source = _Arrays(path, Layout(specs))
    size = path.stat().st_size
    header = size - (source.layout.nbytes if is_stored else stored)

    facts = ["every member is an array of numbers with the bytes that its dtype and shape take"]
    return CheckpointFile(path, "npz", source, {}, header, size, (path,), facts)


def _describe(
    path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, start: int
) -> TensorInfo:
    """Read the header of an array."""
    where = f"{path}: the member {member.filename!r}"
    if not member.filename.endswith(_SUFFIX):
        raise CheckpointError(f"{where} is no {_SUFFIX} array; save the arrays with np.savez")
    name = member.filename.removesuffix(_SUFFIX)
    try:
        check_name(name)
        with archive.open(member) as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a file that Python 2 wrote, for example
            version = np.lib.format.read_magic(stream)
            if version != (1, 0):  # as arrays of numbers have it
                raise ValueError(f"version {version[0]}.{version[1]} is not that of numbers")
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
            elements = member.file_size - stream.tell()
        code = code_of(np.empty(0, dtype), name)
    except LayoutError as error:
        raise LayoutError(f"{where}: {error}") from error
    nbytes = math.prod(shape) * BY_CODE[code].itemsize
    if nbytes != elements:
        raise CheckpointError(
            f"{where} has {elements} bytes of elements where its shape {list(shape)} takes "
            f"{nbytes}; {AGAIN}"
        )
    return TensorInfo(name, code, tuple(shape), start, start + nbytes)


class _Arrays:
    """The arrays as a source. The one that was read last stays in memory."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self.layout = layout
        self._path = path
        self._arrays = np.load(path, allow_pickle=False)
        self._name, self._array = "", MemoryBody.of({})

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Read the bytes ``[start, stop)``."""
        for spec in self.layout.overlapping(start, stop):
            if spec.name != self._name:
                self._array = MemoryBody.of({})  # freed before the next one is read
                with reading(self._path):
                    array = self._arrays[spec.name + _SUFFIX]
                self._name, self._array = spec.name, MemoryBody.of({spec.name: array})
            first, last = max(spec.start, start), min(spec.stop, stop)
            room = into[first - start : last - start]
            self._array.read(first - spec.start, last - spec.start, room)
