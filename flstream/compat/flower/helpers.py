"""Small helpers that apps import from Flower's ``common``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__version__ = "1.42.0"
"""The version of Flower whose names these are."""

logger = logging.getLogger("flwr")
log = logger.log

NDArray = Any
NDArrays = list[Any]
Scalar = bool | bytes | float | int | str
Metrics = dict[str, Any]
UserConfigValue = bool | float | int | str
UserConfig = dict[str, UserConfigValue]


@dataclass
class Parameters:
    """Serialised arrays, or other bytes."""

    tensors: list[bytes]
    tensor_type: str


def flatten_dict(nested: Mapping[str, Any] | None, parent: str = "") -> dict[str, Any]:
    """Return the values of a nested dict by names joined with dots."""
    flat: dict[str, Any] = {}
    for name, value in (nested or {}).items():
        key = f"{parent}.{name}" if parent else str(name)
        flat |= flatten_dict(value, key) if isinstance(value, Mapping) else {key: value}
    return flat


def unflatten_dict(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested dict of values whose names are joined with dots."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, last = key.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return nested
