"""A model in several files, listed in an index such as ``model.safetensors.index.json``."""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from flstream.errors import CheckpointError
from flstream.model.formats.file import CheckpointFile, Format
from flstream.model.header import MAX_HEADER_BYTES
from flstream.model.header_reading import decode_json
from flstream.model.layout import Layout, TensorInfo

# Shards kept open at a time: far below the limit of a process, and enough to read two models whose
# tensors are in different orders.
_MOST_OPEN = 64


class _Segment(NamedTuple):
    """A range of the body that is contiguous in a shard.

    Attributes:
        start: Offset in bytes in the whole body.
        stop: Offset in bytes after the range in the whole body.
        shard: Name of the shard's file.
        offset: Offset in bytes of the range in the shard's own body.
    """

    start: int
    stop: int
    shard: str
    offset: int


class ShardedFile:
    """The tensors that an index names, one shard after another.

    Args:
        path: Path of the index.
        opener: Function that opens a shard.

    Attributes:
        further: Number of tensors in the shards that the index does not name.

    Raises:
        CheckpointError: The index or a shard is not sound, or a shard is not in the index's folder.
    """

    format: Format = "safetensors shards"

    def __init__(self, path: Path, opener: Callable[[Path], CheckpointFile]) -> None:
        self.path = path
        self._opener = opener
        text = _read(path)
        members, self.metadata = _parse(text, path)
        homes = _homes(path)
        self._paths = {name: _shard_path(name, path, homes) for name in sorted(members)}
        self._shards: dict[str, CheckpointFile] = {}
        self._layouts: dict[str, Layout] = {}
        self._segments: list[_Segment] = []
        self.header_bytes, self.file_bytes, self.further = len(text), len(text), 0
        specs: list[TensorInfo] = []
        aliases: dict[str, str] = {}
        for name, wanted in sorted(members.items()):
            self._add(name, wanted, specs, aliases)
        self.layout = Layout(specs, aliases)
        self._starts = [segment.start for segment in self._segments]
        self.files = tuple(self._paths.values())

    def _add(
        self, name: str, wanted: set[str], specs: list[TensorInfo], aliases: dict[str, str]
    ) -> None:
        shard = self._open(name)
        for each in wanted:
            if each not in shard.layout.by_name and each not in shard.layout.aliases:
                raise CheckpointError(
                    f"{self.path} says that tensor {each!r} is in {name}, which has no such "
                    "tensor; fetch both files again"
                )
        self.header_bytes += shard.header_bytes
        self.file_bytes += shard.file_bytes
        offset = specs[-1].stop if specs else 0
        for spec in shard.layout.tensors:
            if spec.name not in wanted:
                self.further += 1
                continue
            moved = spec._replace(start=offset, stop=offset + spec.nbytes)
            specs.append(moved)
            last = self._segments[-1] if self._segments else None
            if last and (last.shard, last.offset + last.stop - last.start) == (name, spec.start):
                self._segments[-1] = last._replace(stop=moved.stop)
            elif spec.nbytes:
                self._segments.append(_Segment(offset, moved.stop, name, spec.start))
            offset = moved.stop
        aliases.update({a: t for a, t in shard.layout.aliases.items() if t in wanted})

    def _open(self, name: str) -> CheckpointFile:
        shard = self._shards.pop(name, None)
        if shard is None:
            if len(self._shards) >= _MOST_OPEN:
                del self._shards[next(iter(self._shards))]
            shard = self._opener(self._paths[name])
            if self._layouts.setdefault(name, shard.layout) != shard.layout:
                raise CheckpointError(
                    f"{self._paths[name]} became another file while it was read; start again"
                )
        self._shards[name] = shard  # the one that was used last is the last to be closed
        return shard

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Gather the bytes ``[start, stop)`` from all shards that have some of them."""
        index, reached = bisect_right(self._starts, start) - 1, start
        while reached < stop:
            segment = self._segments[index]
            last, shift = min(stop, segment.stop), segment.offset - segment.start
            room = into[reached - start : last - start]
            self._open(segment.shard).read(reached + shift, last + shift, room)
            reached, index = last, index + 1

    def check(self) -> list[str]:
        """Check every shard, and compare the total size that the index states."""
        checks = [f"every tensor of the index is in its shard, of {len(self._paths)}"]
        if self.further:
            checks.append(f"the shards have {self.further} more that the index does not name")
        total = self.metadata.get("total_size", "")
        if total.isdecimal():
            agrees = "as" if int(total) == self.layout.nbytes else f"where it says {total}, not as"
            checks.append(f"the tensors take {self.layout.nbytes} bytes, {agrees} the index says")
        for name in self._paths:
            checks += [f"{name}: {check}" for check in self._open(name).check()]
        return checks


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_HEADER_BYTES:
                raise CheckpointError(
                    f"{path} has {size} bytes, more than an index takes; name the index of a model"
                )
            return file.read(MAX_HEADER_BYTES)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _parse(text: bytes, path: Path) -> tuple[dict[str, set[str]], Mapping[str, str]]:
    """Return the names of the tensors by shard, and the metadata."""
    again = "fetch the index again"
    try:
        fields = decode_json(text)
    except ValueError as error:
        raise CheckpointError(f"{path} is no index that can be read: {error}; {again}") from error
    where = fields.get("weight_map") if isinstance(fields, dict) else None
    if not isinstance(fields, dict) or not isinstance(where, dict):
        raise CheckpointError(f"{path} has no weight_map, so it is no index of shards; {again}")
    if not where:
        raise CheckpointError(f"{path} has a weight_map without a tensor in it; {again}")
    members: dict[str, set[str]] = {}
    for name, shard in where.items():
        if not isinstance(shard, str):
            raise CheckpointError(
                f"{path} gives tensor {name!r} the shard {json.dumps(shard)[:40]}, which is no "
                f"file name; {again}"
            )
        members.setdefault(shard, set()).add(name)
    metadata = fields.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise CheckpointError(f"{path} has metadata that is not a table; {again}")
    return members, {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in metadata.items()
    }


def _homes(path: Path) -> tuple[Path, ...]:
    # A download cache has its files in one folder, under their digests, and links to them.
    return path.parent.resolve(), path.resolve().parent


def _shard_path(name: str, index: Path, homes: tuple[Path, ...]) -> Path:
    """Return the path of a shard, which must lie beside the index or below it."""
    parts = PurePosixPath(name)
    if not name or "\0" in name or parts.is_absolute() or ".." in parts.parts:
        raise CheckpointError(
            f"{index} names the shard {name!r}, which does not lie beside it; correct the index"
        )
    if name.lower().endswith(".json"):
        raise CheckpointError(
            f"{index} names the shard {name!r}, which is no file of tensors; correct the index"
        )
    path = index.parent / name
    try:
        real = path.resolve(strict=True)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{index} names the shard {name!r}, which is not there; fetch it into {index.parent}"
        ) from error
    except (OSError, RuntimeError) as error:  # a link to itself is a RuntimeError
        raise CheckpointError(
            f"{index} names the shard {name!r}, which cannot be opened; fetch it again"
        ) from error
    if not any(real.is_relative_to(home) for home in homes):
        raise CheckpointError(
            f"{index} names the shard {name!r}, a link out of its folder to {real}; "
            "put a copy there"
        )
    return path
