"""What a checkpoint's headers say, and what it means for streaming the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from flstream.errors import UsageError
from flstream.model.formats.file import CheckpointFile
from flstream.model.formats.opening import open_checkpoint
from flstream.model.header import TensorSpec
from flstream.model.layout import Layout
from flstream.streaming.receiver import StreamSettings

Order = Literal["file", "size", "name"]
ORDERS: tuple[Order, ...] = get_args(Order)
CHUNK_BYTES = StreamSettings().chunk_size


class Count(NamedTuple):
    """How much there is of something."""

    tensors: int
    parameters: int
    bytes: int

    @classmethod
    def of(cls, specs: Iterable[TensorSpec]) -> Count:
        """Count some tensors."""
        specs = list(specs)
        parameters = sum(spec.elements for spec in specs)
        return cls(len(specs), parameters, sum(spec.nbytes for spec in specs))


class Streaming(NamedTuple):
    """What sending the model once costs.

    Attributes:
        chunk_size: longest frame in bytes.
        request_size: bytes that one request covers, a whole number of chunks.
        chunks: frames that carry the model.
        requests: fetch requests for it.
        per_tensor_calls: calls that it would take if every tensor were fetched on its own.
        largest_tensor_chunks: chunks that the largest tensor reaches into.
        as_it_lies: whether the file's bytes are in the order in which they are streamed; if not,
            a run that starts from it lays them out anew.
    """

    chunk_size: int
    request_size: int
    chunks: int
    requests: int
    per_tensor_calls: int
    largest_tensor_chunks: int
    as_it_lies: bool

    @classmethod
    def of(cls, layout: Layout, chunk_size: int, *, as_it_lies: bool) -> Streaming:
        """Plan the way of a model.

        Args:
            layout: of the model.
            chunk_size: bytes, a multiple of 16.
            as_it_lies: whether it lies in one body of that order.
        """
        settings = StreamSettings(chunk_size)
        chunk_size, request_size = settings.frame_size, settings.bytes_a_request
        streamed = Layout.of((spec.name, spec.dtype, spec.shape) for spec in layout.tensors)
        largest = max(streamed.tensors, key=lambda spec: spec.nbytes, default=None)
        reached = 0
        if largest is not None and largest.nbytes:
            reached = (largest.stop - 1) // chunk_size - largest.start // chunk_size + 1
        return cls(
            chunk_size=chunk_size,
            request_size=request_size,
            chunks=-(-layout.nbytes // chunk_size),
            requests=-(-layout.nbytes // request_size),
            # Empty tensors have no byte, but a call would have to be made for each.
            per_tensor_calls=len(layout.tensors),
            largest_tensor_chunks=reached,
            as_it_lies=as_it_lies,
        )


class Inspection(NamedTuple):
    """What the headers of a checkpoint say.

    Attributes:
        file: the checkpoint, open.
        tensors: those that were asked for, in the order that was asked for.
        total: what there is of all tensors.
        shown: what there is of those that were asked for.
        dtypes: what there is of each type in the whole, the largest share first.
        streaming: what sending the whole costs.
    """

    file: CheckpointFile
    tensors: Sequence[TensorSpec]
    total: Count
    shown: Count
    dtypes: Mapping[str, Count]
    streaming: Streaming

    @property
    def ties(self) -> Mapping[str, str]:
        """The tensors that were asked for by their further names."""
        names = {spec.name for spec in self.tensors}
        return {alias: name for alias, name in self.file.layout.aliases.items() if name in names}

    def document(self) -> dict[str, Any]:
        """The same for JSON; ``start`` and ``stop`` count from the first tensor's first byte."""
        return {
            "path": str(self.file.path),
            "format": self.file.format,
            "files": [str(path) for path in self.file.files],
            "file_bytes": self.file.file_bytes,
            "tensors": [
                {
                    "name": spec.name,
                    "dtype": spec.dtype,
                    "shape": list(spec.shape),
                    "bytes": spec.nbytes,
                    "start": spec.start,
                    "stop": spec.stop,
                }
                for spec in self.tensors
            ],
            "total": self.total._asdict(),
            "shown": self.shown._asdict(),
            "dtypes": {code: count._asdict() for code, count in self.dtypes.items()},
            "tied": dict(self.ties),
            "header_bytes": self.file.header_bytes,
            "metadata": dict(self.file.metadata),
            "streaming": self.streaming._asdict(),
        }


def inspect_checkpoint(
    path: Path,
    *,
    filters: Collection[str] = (),
    order: Order = "file",
    chunk_size: int = CHUNK_BYTES,
) -> Inspection:
    """Read what a checkpoint's headers say.

    Args:
        path: of a file of any format.
        filters: patterns as a shell has them, of names; a tensor that matches one is shown.
        order: of the tensors: as in the file, the largest first, or by name.
        chunk_size: longest frame in bytes, a multiple of 16.

    Raises:
        CheckpointError: the file cannot be read or is not sound.
        LayoutError: it has a tensor that a body cannot hold.
        UsageError: no tensor matches a pattern.
    """
    file = open_checkpoint(path)
    layout = file.layout
    by_dtype: dict[str, list[TensorSpec]] = {}
    for spec in layout.tensors:
        by_dtype.setdefault(spec.dtype, []).append(spec)
    counts = {code: Count.of(specs) for code, specs in by_dtype.items()}
    tensors = _sorted(_matching(file, filters), order)
    as_it_lies = file.format == "safetensors" and layout.is_canonical
    return Inspection(
        file=file,
        tensors=tensors,
        total=Count.of(layout.tensors),
        shown=Count.of(tensors),
        dtypes=dict(sorted(counts.items(), key=lambda item: -item[1].bytes)),
        streaming=Streaming.of(layout, chunk_size, as_it_lies=as_it_lies),
    )


def matches(name: str, filters: Collection[str]) -> bool:
    """Whether a name matches one of some patterns; without any, every name does."""
    return not filters or any(fnmatchcase(name, pattern) for pattern in filters)


def _matching(file: CheckpointFile, filters: Collection[str]) -> list[TensorSpec]:
    layout = file.layout
    tied = {name for alias, name in layout.aliases.items() if matches(alias, filters)}
    shown = [spec for spec in layout.tensors if spec.name in tied or matches(spec.name, filters)]
    if filters and not shown:
        patterns = " or ".join(repr(pattern) for pattern in filters)
        example = f", which has such as {layout.tensors[0].name!r}" if layout.tensors else ""
        raise UsageError(
            f"no tensor of {file.path} matches --filter {patterns}{example}; "
            "a pattern is of the whole name, such as '*.weight'"
        )
    return shown


def _sorted(tensors: list[TensorSpec], order: Order) -> list[TensorSpec]:
    if order == "size":
        return sorted(tensors, key=lambda spec: (-spec.nbytes, spec.name))
    if order == "name":
        return sorted(tensors, key=lambda spec: spec.name)
    return tensors
