"""A model in several files, listed in an index such as ``model.safetensors.index.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec

from flstream.errors import CheckpointError
from flstream.model.composed import Place, composed
from flstream.model.formats.opening import CheckpointFile, open_checkpoint
from flstream.model.header import MAX_HEADER_BYTES


class _Index(msgspec.Struct):
    """The content of an index."""

    weight_map: Annotated[dict[str, str], msgspec.Meta(min_length=1)]  # file name by tensor
    metadata: dict[str, Any] | None = None


def open_shards(path: Path) -> CheckpointFile:
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
    facts = [
        f"every tensor of the index is in its shard, of {len(shards)}",
        *([f"the shards have {further} more that the index does not name"] if further else ()),
        *([f"the tensors take {nbytes} bytes, {agrees} the index says"] if total else ()),
        *(f"{name}: {fact}" for name, shard in shards.items() for fact in shard.facts),
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
        facts,
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
