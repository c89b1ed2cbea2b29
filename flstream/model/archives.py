"""Checkpoints in zip archives: ``np.savez`` arrays and ``torch.save`` files.

Neither is unpickled in a way that runs code: arrays are read as numbers, and files of torch are
mapped and loaded as weights only.
"""

from __future__ import annotations

import math
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flstream.errors import CheckpointError, LayoutError
from flstream.model.dtypes import BY_CODE, code_of
from flstream.model.formats import CheckpointFile
from flstream.model.layout import Layout, TensorInfo, check_name
from flstream.model.memory import MemoryBody

if TYPE_CHECKING:
    import torch

AGAIN = "fetch the file again or save it anew"
"""Next step for a damaged file."""

_ENCRYPTED = 1
_SUFFIX = ".npy"
_DEEPEST = 64
# A list can hold another one twice, level by level: a small pickle with countless values.
_MOST_VALUES = 1_000_000
_LONGEST_TEXT = 1000


@contextmanager
def _open_archive(path: Path, remedy: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive; its errors have the file's name, and a remedy."""
    with _reading(path):
        if not zipfile.is_zipfile(path):
            raise CheckpointError(f"{path} is no zip archive, or was cut short; {remedy}")
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.flag_bits & _ENCRYPTED:
                    raise CheckpointError(
                        f"{path}: the member {member.filename!r} is encrypted; save the file "
                        "without a password"
                    )
            yield archive


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Give the errors of reading an archive the file's name."""
    try:
        yield
    # An archive, and the headers in it, can be wrong in any way.
    except (
        OSError, EOFError, ValueError, TypeError, SyntaxError, NotImplementedError, RuntimeError,
        MemoryError, zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        flaw = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{path} cannot be read: {flaw}; {AGAIN}") from error


def check_members(path: Path) -> str:
    """Read every member of an archive, which checks its CRC-32, and say so."""
    with _open_archive(path, AGAIN) as archive:
        damaged = archive.testzip()
        if damaged is not None:
            raise CheckpointError(f"{path}: the member {damaged!r} is damaged; {AGAIN}")
        return f"the {len(archive.namelist())} members of the archive match their CRC-32"


def open_npz(path: Path) -> CheckpointFile:
    """Open the arrays of an ``.npz`` file, as tensors in C order."""
    specs: list[TensorInfo] = []
    with _open_archive(path, "save the arrays with np.savez") as archive:
        for member in archive.infolist():
            specs.append(_describe(path, archive, member, specs[-1].stop if specs else 0))
        stored = sum(member.compress_size for member in archive.infolist())
        is_stored = all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
    source = _Arrays(path, Layout(specs))
    size = path.stat().st_size
    header = size - (source.layout.nbytes if is_stored else stored)
    return CheckpointFile(path, "npz", source, {}, header, size, (path,))


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
    """Source of arrays, which keeps the array that was read last in memory."""

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
                with _reading(self._path):
                    array = self._arrays[spec.name + _SUFFIX]
                self._name, self._array = spec.name, MemoryBody.of({spec.name: array})
            first, last = max(spec.start, start), min(spec.stop, stop)
            room = into[first - start : last - start]
            self._array.read(first - spec.start, last - spec.start, room)


def open_torch(path: Path) -> CheckpointFile:
    """Open the tensors of a ``.pt``, ``.pth`` or ``.bin`` file, by their paths.

    Keys of nested tables are joined by dots. Numbers and texts become metadata, and all other
    values are ignored.
    """
    with _open_archive(path, "save it again with torch.save of a current version") as archive:
        members = archive.infolist()
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED:
            raise CheckpointError(
                f"{path}: the member {member.filename!r} is compressed, so it cannot be mapped; "
                "save it again with torch.save"
            )
    tensors, metadata = _flatten(_load(path), str(path))
    try:
        body = MemoryBody.of(tensors)
    except LayoutError as error:
        raise LayoutError(f"{path}: {error}") from error
    size = path.stat().st_size
    data = [m.file_size for m in members if re.fullmatch(r"[^/]+/data/[^/]+", m.filename)]
    return CheckpointFile(path, "torch", body, metadata, size - sum(data), size, (path,))


def _load(path: Path) -> Any:
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    # A pickle can make torch's own code fail with any error.
    except Exception as error:
        text = str(error)
        named = re.search(r"GLOBAL ([\w.]+)", text)
        if named is not None:
            raise CheckpointError(
                f"{path} holds {named[1]}, and loading that would run code, which is never done; "
                "save only the state dict"
            ) from error
        # torch writes the reason after its advice, which is to trust the file.
        reason = text.rpartition("WeightsUnpickler error: ")[2].strip().partition("\n")[0][:200]
        raise CheckpointError(
            f"{path} cannot be loaded by torch: {reason or type(error).__name__}; {AGAIN}"
        ) from error


def _flatten(value: Any, origin: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Collect a value's tensors, numbers and texts by their paths, or as ``tensor``."""
    import torch

    tensors: dict[str, torch.Tensor] = {}
    plain: dict[str, str] = {}
    todo: list[tuple[list[str], Any]] = [([], value)]
    seen = 1
    while todo:
        path, item = todo.pop()
        name = ".".join(path)
        if isinstance(item, torch.Tensor):
            if tensors.setdefault(name or "tensor", item) is not item:
                raise CheckpointError(
                    f"{origin} has two tensors whose path is {name!r}; save only one of the tables"
                )
        elif isinstance(item, Mapping | list | tuple):
            seen += len(item)
            if seen > _MOST_VALUES or len(path) == _DEEPEST:
                raise CheckpointError(
                    f"{origin} holds more than {_MOST_VALUES:,} values, or is nested more than "
                    f"{_DEEPEST} deep; save only the state dict"
                )
            items = [*(item.items() if isinstance(item, Mapping) else enumerate(item))]
            # The first is the next.
            todo += [([*path, _key(key, name, origin)], child) for key, child in reversed(items)]
        elif isinstance(item, str | int | float | bool) and path:
            plain[name] = str(item)[:_LONGEST_TEXT]
    return tensors, plain


def _key(key: object, path: str, origin: str) -> str:
    if not isinstance(key, str | int):
        raise CheckpointError(
            f"{origin} has a {type(key).__name__} for a key under {path!r}, which cannot name a "
            "tensor; save only the state dict"
        )
    return str(key)
