"""Tensors and modules of a checkpoint, and the cost of streaming it, from its headers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import Literal, Self

import msgspec
from msgspec import UNSET, UnsetType

from flstream.errors import UsageError
from flstream.inspection.statistics import Statistics
from flstream.model.formats.file import CheckpointFile
from flstream.model.header import TensorInfo
from flstream.model.layout import Layout
from flstream.streaming.receiver import StreamSettings

Order = Literal["file", "size", "name"]
CHUNK_BYTES = StreamSettings().chunk_size
# Dots of a tensor's name that separate modules; the last part has the rest.
_MOST_DOTS = 64


class TensorRow(msgspec.Struct, frozen=True):
    """A tensor: ``start`` and ``stop`` are its bytes in the body, through all shards."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    start: int
    stop: int
    stats: Statistics | UnsetType = UNSET

    @classmethod
    def of(cls, spec: TensorInfo, stats: Statistics | UnsetType = UNSET) -> Self:
        """Describe a tensor of a layout."""
        return cls(spec.name, spec.dtype, spec.shape, spec.nbytes, spec.start, spec.stop, stats)


class Count(msgspec.Struct, frozen=True):
    """Counts over some tensors, those of a module for instance."""

    tensors: int
    parameters: int
    bytes: int
    name: str | UnsetType = UNSET

    @classmethod
    def of(cls, specs: Collection[TensorInfo], name: str | UnsetType = UNSET) -> Self:
        """Count some tensors, their elements and their bytes."""
        parameters = sum(spec.elements for spec in specs)
        return cls(len(specs), parameters, sum(spec.nbytes for spec in specs), name)


class StreamingCost(msgspec.Struct, frozen=True):
    """Cost of streaming a model once.

    Attributes:
        chunk_size: maximum frame size in bytes.
        request_size: bytes that one request covers, a whole number of chunks.
        chunks: number of frames for the model.
        requests: number of fetch requests for the model.
        per_tensor_calls: number of calls if every tensor were fetched on its own.
        largest_tensor_chunks: number of chunks that have bytes of the largest tensor.
        as_it_lies: whether the file's bytes are in the order in which they are streamed; if not,
            a run that starts from the file reorders them first.
    """

    chunk_size: int
    request_size: int
    chunks: int
    requests: int
    per_tensor_calls: int
    largest_tensor_chunks: int
    as_it_lies: bool

    @classmethod
    def of(cls, layout: Layout, chunk_size: int, *, as_it_lies: bool) -> Self:
        """Compute the cost of streaming a model in chunks of a multiple of 16 bytes."""
        settings = StreamSettings(chunk_size)
        chunk, request = settings.frame_size, settings.bytes_a_request
        streamed = Layout.of((spec.name, spec.dtype, spec.shape) for spec in layout.tensors)
        largest = max(streamed.tensors, key=lambda spec: spec.nbytes, default=None)
        reached = 0
        if largest is not None and largest.nbytes:
            reached = (largest.stop - 1) // chunk - largest.start // chunk + 1
        chunks, requests = -(-layout.nbytes // chunk), -(-layout.nbytes // request)
        # A tensor without bytes would take a call too.
        return cls(chunk, request, chunks, requests, len(layout.tensors), reached, as_it_lies)


def matches(name: str, filters: Collection[str]) -> bool:
    """Return whether a name matches one of the shell patterns, or there are no patterns."""
    return not filters or any(fnmatchcase(name, pattern) for pattern in filters)


def matching(file: CheckpointFile, filters: Collection[str], order: Order) -> list[TensorInfo]:
    """List the tensors that match a pattern, by their name or a tied one.

    Raises:
        UsageError: no tensor matches a pattern.
    """
    layout = file.layout
    tied = {name for alias, name in layout.aliases.items() if matches(alias, filters)}
    tensors = [spec for spec in layout.tensors if spec.name in tied or matches(spec.name, filters)]
    if filters and not tensors:
        patterns = " or ".join(repr(pattern) for pattern in filters)
        example = f", which has such as {layout.tensors[0].name!r}" if layout.tensors else ""
        raise UsageError(
            f"no tensor of {file.path} matches --filter {patterns}{example}; "
            "a pattern is of the whole name, such as '*.weight'"
        )
    if order != "file":
        tensors.sort(key=lambda spec: (-spec.nbytes if order == "size" else 0, spec.name))
    return tensors


def count_dtypes(tensors: Sequence[TensorInfo]) -> dict[str, Count]:
    """Count tensors by their safetensors type code, in the order of falling size."""
    dtypes: dict[str, list[TensorInfo]] = {}
    for spec in tensors:
        dtypes.setdefault(spec.dtype, []).append(spec)
    counts = {code: Count.of(specs) for code, specs in dtypes.items()}
    return dict(sorted(counts.items(), key=lambda item: -item[1].bytes))


def count_modules(tensors: Sequence[TensorInfo]) -> list[Count]:
    """Count the tensors of each module and of all modules below it, parents first.

    Names are split into modules at their dots. A module with nothing but one module in it is
    counted as that one.
    """
    below: dict[str, list[TensorInfo]] = {}
    for spec in tensors:
        parts = spec.name.split(".", _MOST_DOTS)
        for depth in range(1, len(parts)):
            below.setdefault(".".join(parts[:depth]), []).append(spec)
    parents = {name: name.rpartition(".")[0] for name in below}
    merged = {
        parent
        for name, parent in parents.items()
        if parent in below and parent != name and len(below[name]) == len(below[parent])
    }
    places: dict[str, list[int]] = {}
    for place, (name, parent) in enumerate(parents.items()):
        places[name] = [*places.get(parent, ()), place]
    ordered = sorted(below, key=places.__getitem__)
    return [Count.of(below[name], name) for name in ordered if name not in merged]
