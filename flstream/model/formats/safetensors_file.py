"""A ``.safetensors`` file as a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flstream.model.checkpoint import FileSource
from flstream.model.formats.file import Format
from flstream.model.layout import Layout


class SafetensorsFile:
    """A safetensors file of any origin.

    Raises:
        CheckpointError: The file cannot be read or is not sound.
    """

    format: Format = "safetensors"

    def __init__(self, path: Path) -> None:
        self._source = FileSource(path)
        self.path = path
        self.layout: Layout = self._source.layout
        self.metadata: Mapping[str, str] = self._source.metadata
        self.header_bytes: int = self._source.header_bytes
        self.file_bytes = self.header_bytes + self.layout.nbytes
        self.files = (path,)

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Read the bytes ``[start, stop)``."""
        self._source.read(start, stop, into)

    def check(self) -> list[str]:
        """Describe what was checked when the file was opened."""
        return [
            f"the header of {self.header_bytes} bytes lies within the file and is well-formed",
            "every tensor has the bytes that its dtype and shape take",
            f"the tensors cover the {self.layout.nbytes} bytes behind the header, with no overlap "
            "and no hole",
        ]
