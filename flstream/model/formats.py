"""Opening a checkpoint of any format by its name. Only regular files are opened.

A model may lie in several files, listed in an index such as ``model.safetensors.index.json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import msgspec

from flstream.errors import CheckpointError, LayoutError
from flstream.model.checkpoint import FileSource, regular_size
from flstream.model.composed import Place, composed
from flstream.model.header import MAX_HEADER_BYTES
from flstream.model.layout import Layout
from flstream.model.source import Source, in_place

Format = Literal["safetensors", "safetensors shards", "torch", "npz"]

# Suffixes of files that are zip archives; the last three are those of torch.
_ARCHIVES = (".npz", ".pt", ".pth", ".bin")
# Most bytes of tensors for each byte of a file: the highest ratio that deflate can reach.
_MOST_EXPANSION = 1032


@dataclass(frozen=True, eq=False)
class CheckpointFile:
    """Open checkpoint: a source, and its file's facts beside the tensors.

    Attributes:
        path: Path of the checkpoint.
        format: Name of its format.
        source: Its tensors.
        metadata: Strings that it has beside them, by key.
        header_bytes: Bytes of the file, or of all files together, that are not tensors.
        file_bytes: Length in bytes of the file, or of all files together.
        files: Paths of the files that have the tensors.
        notes: How an index agrees with its shards, a sentence each; none for other files.
    """

    path: Path
    format: Format
    source: Source
    metadata: Mapping[str, str]
    header_bytes: int
    file_bytes: int
    files: Sequence[Path]
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse a file that declares more tensors than it can hold."""
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
        """Return mapped bytes ``[start, stop)`` in place; None for others."""
        return in_place(self.source, start, stop)

    def check(self) -> list[str]:
        """Check the file as its format allows; describe each check in a sentence.

        Raises:
            CheckpointError: A member of an archive is damaged.
        """
        from flstream.model.archives import check_members

        archives = (path for path in self.files if path.suffix.lower() in _ARCHIVES)
        sound = "every tensor has the bytes that its dtype and shape take, within the file"
        return [sound, *self.notes, *map(check_members, archives)]


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
        return _open_shards(path)
    if suffix in _ARCHIVES:
        from flstream.model.archives import open_npz, open_torch

        return open_npz(path) if suffix == ".npz" else open_torch(path)
    source = FileSource(path)
    header, size = source.header_bytes, source.layout.nbytes
    return CheckpointFile(
        path, "safetensors", source, source.metadata, header, header + size, (path,)
    )


class _Index(msgspec.Struct):
    """The content of an index."""

    weight_map: Annotated[dict[str, str], msgspec.Meta(min_length=1)]  # file name by tensor
    metadata: dict[str, Any] | None = None


def _open_shards(path: Path) -> CheckpointFile:
    """Open the tensors that an index names."""
    members, metadata = _parse(path)
    shards = {name: open_checkpoint(_shard_path(name, path)) for name in sorted(members)}
    aliases: dict[str, str] = {}
    places: dict[str, Place] = {}
    for name, shard in shards.items():
        lacking = sorted(members[name].difference(shard.layout.names))
        if lacking:
            raise CheckpointError(
                f"{path} says that tensor {lacking[0]!r} is in {name}, which has no such tensor; "
                "fetch both files again"
            )
        own = shard.layout
        aliases |= own.subset(members[name]).aliases
        places |= {spec.name: (shard, spec) for spec in own.tensors if spec.name in members[name]}
    source = composed(places, aliases)
    further = sum(len(shard.layout.tensors) for shard in shards.values()) - len(places)

    total, nbytes = metadata.get("total_size", ""), source.layout.nbytes
    agrees = "as" if total == str(nbytes) else f"where it says {total}, not as"
    notes = [
        f"every tensor of the index is in its shard, of {len(shards)}",
        *([f"the shards have {further} more that the index does not name"] if further else ()),
        *([f"the tensors take {nbytes} bytes, {agrees} the index says"] if total else ()),
    ]
    size = path.stat().st_size
    return CheckpointFile(
        path,
        "safetensors shards",
        source,
        metadata,
        size + sum(shard.header_bytes for shard in shards.values()),
        size + sum(shard.file_bytes for shard in shards.values()),
        tuple(shard.path for shard in shards.values()),
        notes,
    )


def shard_paths(path: Path) -> list[Path]:
    """Return the paths of the files that an index names.

    Raises:
        CheckpointError: The index is not sound, or a file is not in its folder.
    """
    return [_shard_path(name, path) for name in sorted(_parse(path)[0])]


def _parse(path: Path) -> tuple[dict[str, set[str]], Mapping[str, str]]:
    """Return the names of the tensors by shard, and the metadata."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_HEADER_BYTES + 1)
        if len(text) > MAX_HEADER_BYTES:
            raise ValueError(f"it has more than {MAX_HEADER_BYTES} bytes")
        index = msgspec.json.decode(text, type=_Index)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is no index of shards that can be read: {error}; fetch the index again"
        ) from error
    members: dict[str, set[str]] = {}
    for name, shard in index.weight_map.items():
        members.setdefault(shard, set()).add(name)
    return members, {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in (index.metadata or {}).items()
    }


def _shard_path(name: str, index: Path) -> Path:
    """Return the path of a shard, which must lie beside the index or below it."""
    parts = PurePosixPath(name)
    is_beside = bool(name) and "\0" not in name and not parts.is_absolute()
    if not is_beside or ".." in parts.parts or name.lower().endswith(".json"):
        raise CheckpointError(
            f"{index} names the shard {name!r}, which is no file of tensors beside it; correct the "
            "index"
        )
    path = index.parent / name
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # a link to itself is a RuntimeError
        raise CheckpointError(
            f"{index} names the shard {name!r}, which is not there; fetch it into {index.parent}"
        ) from error
    # A download cache has its files in one folder, under their digests, and links to them.
    homes = index.parent.resolve(), index.resolve().parent
    if not any(real.is_relative_to(home) for home in homes):
        raise CheckpointError(
            f"{index} names the shard {name!r}, a link out of its folder to {real}; "
            "put a copy there"
        )
    return path
