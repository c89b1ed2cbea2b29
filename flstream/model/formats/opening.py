"""Opening a checkpoint of any format by its name. Only regular files are opened."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flstream.errors import CheckpointError, LayoutError
from flstream.model.checkpoint import FileSource, regular_size
from flstream.model.layout import Layout
from flstream.model.source import Source, in_place

Format = Literal["safetensors", "safetensors shards", "torch", "npz"]

AGAIN = "fetch the file again or save it anew"
"""Next step for a damaged file."""
# Suffixes of files that are zip archives; the last three are those of torch.
_ARCHIVES = (".npz", ".pt", ".pth", ".bin")
# Most bytes of tensors for each byte of a file: the highest ratio that deflate can reach.
_MOST_EXPANSION = 1032
_ENCRYPTED = 1


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
        """Refuse a file that states more tensors than it can hold, before they are read."""
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
        archives = (path for path in self.files if path.suffix.lower() in _ARCHIVES)
        return [*self.facts, *map(_check_members, archives)]


def open_checkpoint(path: Path) -> CheckpointFile:
    """Open a checkpoint: ``.safetensors``, ``.pt``, ``.pth``, ``.bin``, ``.npz``, or an index.

    An index is a ``.json`` file that names shards, as ``model.safetensors.index.json`` does. A file
    of any other name is opened as safetensors, such as a ``.tmp`` file. The tensors of ``.pt`` are
    mapped; of ``.npz``, one array at a time is in memory.

    Raises:
        CheckpointError: The file cannot be read, or is not sound; the message names it.
        LayoutError: It has a tensor that a body cannot hold; the message names both.
    """
    regular_size(path)
    suffix = path.suffix.lower()
    if suffix == ".json":
        from flstream.model.formats.shards import open_shards

        return open_shards(path)
    if suffix == ".npz":
        from flstream.model.formats.npz import open_npz

        return open_npz(path)
    if suffix in _ARCHIVES:
        from flstream.model.formats.torch_file import open_torch

        return open_torch(path)
    source = FileSource(path)
    header, size = source.header_bytes, source.layout.nbytes
    facts = [
        f"the header of {header} bytes lies within the file and is well-formed",
        "every tensor has the bytes that its dtype and shape take",
        f"the tensors cover the {size} bytes behind the header, with no overlap and no hole",
    ]
    metadata = source.metadata
    return CheckpointFile(
        path, "safetensors", source, metadata, header, header + size, (path,), facts
    )


@contextmanager
def open_archive(path: Path, remedy: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive, whose errors get the file's name, and a remedy for what is none."""
    with reading(path):
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
def reading(path: Path) -> Iterator[None]:
    """Give errors of reading an archive the name of the file."""
    try:
        yield
    # An archive, and the headers in it, can be wrong in any way.
    except (
        OSError, EOFError, ValueError, TypeError, SyntaxError, NotImplementedError, RuntimeError,
        MemoryError, zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        flaw = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{path} cannot be read: {flaw}; {AGAIN}") from error


def _check_members(path: Path) -> str:
    """Read every member of an archive to its end, which compares its CRC-32, and say so."""
    with open_archive(path, AGAIN) as archive:
        damaged = archive.testzip()
        if damaged is not None:
            raise CheckpointError(f"{path}: the member {damaged!r} is damaged; {AGAIN}")
        return f"the {len(archive.namelist())} members of the archive match their CRC-32"
