"""What every format of checkpoint has in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from flstream.errors import LayoutError
from flstream.model.body import Scratch
from flstream.model.layout import Layout, TensorSpec

Format = Literal["safetensors", "safetensors shards", "torch", "npz"]

MOST_EXPANSION = 1032
"""How many bytes of tensors a byte of a file may stand for: what deflate can reach, and no more."""


class CheckpointFile(Protocol):
    """An open checkpoint: a source, and what its file says beside the tensors."""

    @property
    def path(self) -> Path:
        """The file that was asked for."""
        ...

    @property
    def format(self) -> Format:
        """How the tensors are stored."""
        ...

    @property
    def layout(self) -> Layout:
        """The tensors, in the order in which their bytes are read."""
        ...

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the file says of itself."""
        ...

    @property
    def header_bytes(self) -> int:
        """Bytes of the file, or files, that describe the tensors and are none."""
        ...

    @property
    def file_bytes(self) -> int:
        """Length of the file, or of all files together."""
        ...

    @property
    def files(self) -> Sequence[Path]:
        """The files that hold the tensors."""
        ...

    def views(self, start: int, stop: int, scratch: Scratch) -> Sequence[memoryview]:
        """The bytes ``[start, stop)`` of the body, at least one.

        Raises:
            CheckpointError: they cannot be read.
        """
        ...

    def check(self) -> list[str]:
        """Check what the format lets one check, and say what that was, a sentence each.

        Raises:
            CheckpointError: something does not hold.
        """
        ...


class PartReader(Protocol):
    """Fills ``view`` with the bytes of one tensor that begin at ``offset`` within it."""

    def __call__(self, spec: TensorSpec, view: memoryview, offset: int) -> None:
        """Fill the view."""
        ...


def read_parts(
    layout: Layout, start: int, stop: int, scratch: Scratch, read: PartReader
) -> list[memoryview]:
    """The bytes ``[start, stop)`` of a body whose tensors lie in different places."""
    whole = scratch.take(stop - start)
    for spec in layout.overlapping(start, stop):
        first, last = max(spec.start, start), min(spec.stop, stop)
        read(spec, whole[first - start : last - start], first - spec.start)
    return [whole]


def check_expansion(path: Path, layout: Layout, file_bytes: int) -> None:
    """Refuse a file that claims more tensors than it can hold, before anyone reads them all.

    Raises:
        LayoutError: it does; the message names the largest tensor.
    """
    if layout.nbytes > MOST_EXPANSION * file_bytes:
        largest = max(layout.tensors, key=lambda spec: spec.nbytes)
        raise LayoutError(
            f"{path} claims {layout.nbytes} bytes of tensors in a file of {file_bytes}, the most "
            f"of them for {largest.name!r}; save it again with every tensor contiguous"
        )
