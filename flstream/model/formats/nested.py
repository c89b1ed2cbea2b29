"""Tensors of nested tables and lists, by their paths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flstream.errors import CheckpointError

if TYPE_CHECKING:
    import torch

_DEEPEST = 64
# A list can hold another one twice, level by level: a small pickle with countless values.
_MOST_VALUES = 1_000_000
_LONGEST_TEXT = 1000
# Each value below a key has a copy of the key in its path.
_LONGEST_PATH = 4096


def flatten(value: Any, origin: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Collect the tensors in a value, and its numbers and texts, by their paths.

    A path is keys and indices joined by dots. A single tensor is named ``tensor``.

    Args:
        value: Nested mappings, lists and tuples.
        origin: Name of the file, for messages.

    Returns:
        The tensors, and the numbers and texts as strings.

    Raises:
        CheckpointError: The value is nested too deeply, or two tensors have the same path.
    """
    import torch

    tensors: dict[str, torch.Tensor] = {}
    plain: dict[str, str] = {}
    todo: list[tuple[str, Any, int]] = [("", value, 0)]
    seen = 1
    while todo:
        path, each, depth = todo.pop()
        if isinstance(each, torch.Tensor):
            name = path or "tensor"
            if name in tensors:
                raise CheckpointError(
                    f"{origin} has two tensors whose path is {name!r}; save only one of the tables"
                )
            tensors[name] = each
        elif isinstance(each, Mapping | list | tuple):
            seen += len(each)
            if seen > _MOST_VALUES:
                raise CheckpointError(
                    f"{origin} holds more than {_MOST_VALUES:,} values; save only the state dict"
                )
            if depth == _DEEPEST:
                raise CheckpointError(
                    f"{origin} is nested more than {_DEEPEST} deep; save only the state dict"
                )
            items = [(_join(path, key, origin), item, depth + 1) for key, item in _items(each)]
            todo += reversed(items)  # so that the first is the next
        elif isinstance(each, str | int | float | bool) and path:
            plain[path] = str(each)[:_LONGEST_TEXT]
    return tensors, plain


def _items(value: Mapping[Any, Any] | list[Any] | tuple[Any, ...]) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, Mapping) else enumerate(value)


def _join(path: str, key: Any, origin: str) -> str:
    if not isinstance(key, str | int):
        raise CheckpointError(
            f"{origin} has a {type(key).__name__} for a key under {path!r}, which cannot name a "
            "tensor; save only the state dict"
        )
    joined = f"{path}.{key}" if path else str(key)
    if len(joined) > _LONGEST_PATH:
        raise CheckpointError(
            f"{origin} has a key of {len(joined)} characters, which begins {joined[:40]!r}; "
            "save only the state dict"
        )
    return joined
