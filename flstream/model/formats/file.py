"""An open checkpoint of any format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flstream.errors import LayoutError
from flstream.model.formats.archive import check_members
from flstream.model.layout import Layout
from flstream.model.source import Source, in_place

Format = Literal["safetensors", "safetensors shards", "torch", "npz"]

ARCHIVES = (".npz", ".pt", ".pth", ".bin")
"""Suffixes of files that are zip archives; the last three are those of torch."""
# Most bytes of tensors for each byte of a file: the highest ratio that deflate can reach.
_MOST_EXPANSION = 1032


@dataclass(frozen=True, eq=False)
class CheckpointFile:
    """An open checkpoint: a source, and the facts that its file states beside the tensors.

    Attributes:
        path: Path of the checkpoint.
        format: Name of its format.
        source: Its tensors.
        metadata: Strings that it has beside them, by key.
        header_bytes: Bytes of the file, or of all files together, that are not tensors.
        file_bytes: Length in bytes of the file, or of all files together.
        files: Paths of the files that have the tensors.
        facts: What was checked when it was opened, a sentence each.
    """

    path: Path
    format: Format
    source: Source
    metadata: Mapping[str, str]
    header_bytes: int
    file_bytes: int
    files: Sequence[Path]
    facts: Sequence[str]

    def __post_init__(self) -> None:
        """Refuse a file that states more tensors than it can hold, before they are read.

        Raises:
            LayoutError: The file does; the message names the largest tensor.
        """
        if self.layout.nbytes > _MOST_EXPANSION * self.file_bytes:
            largest = max(self.layout.tensors, key=lambda spec: spec.nbytes)
            raise LayoutError(
                f"{self.path} claims {self.layout.nbytes} bytes of tensors in a file of "
                f"{self.file_bytes}, the most of them for {largest.name!r}; save it again with "
                "every tensor contiguous"
            )

    @property
    def layout(self) -> Layout:
        """Layout of its tensors."""
        return self.source.layout

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Read the bytes ``[start, stop)`` of its body."""
        self.source.read(start, stop, into)

    def in_place(self, start: int, stop: int) -> Sequence[memoryview] | None:
        """Return the bytes ``[start, stop)`` where they lie, if they are mapped."""
        return in_place(self.source, start, stop)

    def check(self) -> list[str]:
        """Check the file as far as its format allows, and describe each check in a sentence.

        Raises:
            CheckpointError: A member of an archive is damaged.
        """
        return [
            *self.facts,
            *(check_members(p) for p in self.files if p.suffix.lower() in ARCHIVES),
        ]
