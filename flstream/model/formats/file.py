"""The protocol of an open checkpoint of any format, and what the formats share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from flstream.errors import LayoutError
from flstream.model.layout import Layout, TensorInfo
from flstream.model.source import Source

Format = Literal["safetensors", "safetensors shards", "torch", "npz"]

MOST_EXPANSION = 1032
"""Most bytes of tensors for each byte of a file: the highest ratio that deflate can reach."""


class CheckpointFile(Source, Protocol):
    """An open checkpoint: a source, and the facts that its file states beside the tensors."""

    @property
    def path(self) -> Path:
        """Path of the checkpoint."""
        ...

    @property
    def format(self) -> Format:
        """Name of the checkpoint's format."""
        ...

    @property
    def metadata(self) -> Mapping[str, str]:
        """Strings that the file has beside its tensors, by key."""
        ...

    @property
    def header_bytes(self) -> int:
        """Bytes of the file, or of all files together, that are not tensors."""
        ...

    @property
    def file_bytes(self) -> int:
        """Length in bytes of the file, or of all files together."""
        ...

    @property
    def files(self) -> Sequence[Path]:
        """Paths of the files that have the tensors."""
        ...

    def check(self) -> list[str]:
        """Check the file as far as its format allows, and describe each check in a sentence.

        Raises:
            CheckpointError: A check failed.
        """
        ...


class PartReader(Protocol):
    """Function that fills ``view`` with a tensor's bytes from ``offset`` in that tensor on."""

    def __call__(self, spec: TensorInfo, view: memoryview, offset: int) -> None:
        """Fill the view."""
        ...


def read_parts(layout: Layout, start: int, stop: int, into: memoryview, read: PartReader) -> None:
    """Gather the bytes ``[start, stop)`` of a body whose tensors lie in different places.

    Args:
        layout: Layout of the body.
        start: Offset in bytes of the first byte.
        stop: Offset in bytes after the last byte.
        into: Memory that the bytes are gathered into.
        read: Reads a part of one tensor.
    """
    for spec in layout.overlapping(start, stop):
        first, last = max(spec.start, start), min(spec.stop, stop)
        read(spec, into[first - start : last - start], first - spec.start)


def check_expansion(path: Path, layout: Layout, file_bytes: int) -> None:
    """Refuse a file that states more tensors than it can hold, before they are read.

    Raises:
        LayoutError: The file does; the message names the largest tensor.
    """
    if layout.nbytes > MOST_EXPANSION * file_bytes:
        largest = max(layout.tensors, key=lambda spec: spec.nbytes)
        raise LayoutError(
            f"{path} claims {layout.nbytes} bytes of tensors in a file of {file_bytes}, the most "
            f"of them for {largest.name!r}; save it again with every tensor contiguous"
        )
