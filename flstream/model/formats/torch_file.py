"""Files of ``torch.save``, mapped and loaded as weights only, so that no code in them is run."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstream.errors import CheckpointError, LayoutError
from flstream.model.formats.opening import AGAIN, CheckpointFile, open_archive
from flstream.model.memory import MemoryBody

if TYPE_CHECKING:
    import torch

_DEEPEST = 64
# A list can hold another one twice, level by level: a small pickle with countless values.
_MOST_VALUES = 1_000_000
_LONGEST_TEXT = 1000


def open_torch(path: Path) -> CheckpointFile:
    """Open the tensors of a ``.pt``, ``.pth`` or ``.bin`` file, by their paths in the saved value.

    Keys of nested tables are joined by dots. Numbers and texts become metadata, and all other
    values are ignored.
    """
    with open_archive(path, "save it again with torch.save of a current version") as archive:
        members = archive.infolist()
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED:
            raise CheckpointError(
                f"{path}: the member {member.filename!r} is compressed, so it cannot be mapped; "
                "save it again with torch.save"
            )
    tensors, metadata = _flatten(_load(path), str(path))
    try:
        body = MemoryBody.of(tensors)
    except LayoutError as error:
        raise LayoutError(f"{path}: {error}") from error
    size = path.stat().st_size
    data = [m.file_size for m in members if re.fullmatch(r"[^/]+/data/[^/]+", m.filename)]

    facts = ["its pickle names nothing but tensors and plain values, and no code was run"]
    return CheckpointFile(path, "torch", body, metadata, size - sum(data), size, (path,), facts)


def _load(path: Path) -> Any:
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    # A pickle can make torch's own code fail with any error.
    except Exception as error:
        text = str(error)
        named = re.search(r"GLOBAL ([\w.]+)", text)
        if named is not None:
            raise CheckpointError(
                f"{path} holds {named[1]}, and loading that would run code, which is never done; "
                "save only the state dict"
            ) from error
        # torch writes the reason after its advice, which is to trust the file.
        reason = text.rpartition("WeightsUnpickler error: ")[2].strip().partition("\n")[0][:200]
        raise CheckpointError(
            f"{path} cannot be loaded by torch: {reason or type(error).__name__}; {AGAIN}"
        ) from error


def _flatten(value: Any, origin: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Collect the tensors, numbers and texts of a value by their paths, or as ``tensor``."""
    import torch

    tensors: dict[str, torch.Tensor] = {}
    plain: dict[str, str] = {}
    todo: list[tuple[list[str], Any]] = [([], value)]
    seen = 1
    while todo:
        path, item = todo.pop()
        name = ".".join(path)
        if isinstance(item, torch.Tensor):
            if tensors.setdefault(name or "tensor", item) is not item:
                raise CheckpointError(
                    f"{origin} has two tensors whose path is {name!r}; save only one of the tables"
                )
        elif isinstance(item, Mapping | list | tuple):
            seen += len(item)
            if seen > _MOST_VALUES or len(path) == _DEEPEST:
                raise CheckpointError(
                    f"{origin} holds more than {_MOST_VALUES:,} values, or is nested more than "
                    f"{_DEEPEST} deep; save only the state dict"
                )
            items = [*(item.items() if isinstance(item, Mapping) else enumerate(item))]
            # The first is the next.
            todo += [([*path, _key(key, name, origin)], child) for key, child in reversed(items)]
        elif isinstance(item, str | int | float | bool) and path:
            plain[name] = str(item)[:_LONGEST_TEXT]
    return tensors, plain


def _key(key: object, path: str, origin: str) -> str:
    if not isinstance(key, str | int):
        raise CheckpointError(
            f"{origin} has a {type(key).__name__} for a key under {path!r}, which cannot name a "
            "tensor; save only the state dict"
        )
    return str(key)
