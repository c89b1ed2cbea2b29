"""Contents of a checkpoint's headers, and the cost of streaming the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from flstream.errors import UsageError
from flstream.model.formats.file import CheckpointFile
from flstream.model.formats.opening import open_checkpoint
from flstream.model.header import TensorInfo
from flstream.model.layout import Layout
from flstream.streaming.receiver import StreamSettings

Order = Literal["file", "size", "name"]
ORDERS: tuple[Order, ...] = get_args(Order)
CHUNK_BYTES = StreamSettings().chunk_size


class Count(NamedTuple):
    """Counts over some tensors.

    Attributes:
        tensors: number of tensors.
        parameters: number of elements of the tensors.
        bytes: size of the tensors in bytes.
    """

    tensors: int
    parameters: int
    bytes: int

    @classmethod
    def of(cls, specs: Iterable[TensorInfo]) -> Count:
        """Count some tensors."""
        specs = list(specs)
        parameters = sum(spec.elements for spec in specs)
        return cls(len(specs), parameters, sum(spec.nbytes for spec in specs))


class StreamingCost(NamedTuple):
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
    def of(cls, layout: Layout, chunk_size: int, *, as_it_lies: bool) -> StreamingCost:
        """Compute the cost of streaming a model.

        Args:
            layout: layout of the model.
            chunk_size: chunk size in bytes, a multiple of 16.
            as_it_lies: whether the file's bytes are in the order in which they are streamed.
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
            # A tensor without bytes would take a call too.
            per_tensor_calls=len(layout.tensors),
            largest_tensor_chunks=reached,
            as_it_lies=as_it_lies,
        )


class Inspection(NamedTuple):
    """Contents of a checkpoint's headers.

    Attributes:
        file: the open checkpoint.
        tensors: tensors that match the filters, in the requested order.
        total: counts over all tensors.
        shown: counts over the tensors that match the filters.
        dtypes: counts over all tensors by safetensors type code, by falling size.
        streaming: cost of streaming the whole model.
    """

    file: CheckpointFile
    tensors: Sequence[TensorInfo]
    total: Count
    shown: Count
    dtypes: Mapping[str, Count]
    streaming: StreamingCost

    @property
    def ties(self) -> Mapping[str, str]:
        """Names of the tensors in ``tensors``, by the further names that are tied to them."""
        names = {spec.name for spec in self.tensors}
        return {alias: name for alias, name in self.file.layout.aliases.items() if name in names}

    def document(self) -> dict[str, Any]:
        """Convert the contents to JSON.

        ``start`` and ``stop`` of a tensor are byte offsets from the first byte of the body.
        """
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
    """Read the headers of a checkpoint.

    Args:
        path: path of a checkpoint of any format.
        filters: shell patterns of tensor names, of which a tensor must match one; empty for all.
        order: order of the tensors: as in the file, by falling size, or by name.
        chunk_size: maximum frame size in bytes, a multiple of 16.

    Returns:
        The contents of the headers.

    Raises:
        CheckpointError: the file cannot be read or is not sound.
        LayoutError: the file has a tensor that a body cannot have.
        UsageError: no tensor matches a pattern.
    """
    file = open_checkpoint(path)
    layout = file.layout
    by_dtype: dict[str, list[TensorInfo]] = {}
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
        streaming=StreamingCost.of(layout, chunk_size, as_it_lies=as_it_lies),
    )


def matches(name: str, filters: Collection[str]) -> bool:
    """Return whether a name matches one of the shell patterns, or there are no patterns."""
    return not filters or any(fnmatchcase(name, pattern) for pattern in filters)


def _matching(file: CheckpointFile, filters: Collection[str]) -> list[TensorInfo]:
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


def _sorted(tensors: list[TensorInfo], order: Order) -> list[TensorInfo]:
    if order == "size":
        return sorted(tensors, key=lambda spec: (-spec.nbytes, spec.name))
    if order == "name":
        return sorted(tensors, key=lambda spec: spec.name)
    return tensors
