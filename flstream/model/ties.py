"""Tied weights: names that share one tensor, which is sent once and tied again on arrival."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flstream.errors import LayoutError
from flstream.model.device import TensorView
from flstream.model.source import Scratch

_STEP = 1 << 20


def find_ties(tensors: Mapping[str, TensorView]) -> dict[str, str]:
    """Find the names that show the same elements of the same memory as another name.

    Returns:
        The name that stands for the tensor, by each of its other names. It is the first in
        alphabetical order, so that it does not depend on the order of the state dict.
    """
    firsts: dict[tuple[object, ...], str] = {}
    ties = {}
    for name in sorted(tensors):
        tensor = tensors[name]
        if tensor.nbytes:  # empty tensors have no byte to share
            first = firsts.setdefault(tensor.place, name)
            if first != name:
                ties[name] = first
    return ties


def restore_ties(
    tensors: Mapping[str, TensorView], ties: Mapping[str, str]
) -> dict[str, TensorView]:
    """Return the tensors without the aliases of a model, if these still hold the same bytes.

    Training often breaks a tie in its results, by cloning every value, or lists a tied parameter
    under one of its names only, as ``Module.named_parameters`` does. Neither loses anything.

    Args:
        tensors: Tensors by name.
        ties: Aliases of the model, as :func:`find_ties` returns them.

    Raises:
        LayoutError: Two names that the model ties hold different bytes; the message has both.
    """
    distinct = dict(tensors)
    for alias, name in ties.items():
        if alias not in distinct:
            continue
        mine = distinct.pop(alias)
        if not _same_bytes(mine, distinct.setdefault(name, mine)):
            raise LayoutError(
                f"tensor {alias!r} is tied to {name!r} in the model, but the update holds "
                "different values; tie them again or untie them in the model"
            )
    return distinct


def _same_bytes(one: TensorView, other: TensorView) -> bool:
    if one.place == other.place:
        return True
    if (one.code, one.shape) != (other.code, other.shape):
        return False
    scratches = Scratch(), Scratch()
    for start in range(0, one.nbytes, _STEP):
        stop = min(start + _STEP, one.nbytes)
        rooms = [scratch.take(stop - start) for scratch in scratches]
        one.read(start, stop, rooms[0])
        other.read(start, stop, rooms[1])
        mine, theirs = (np.frombuffer(room, np.uint8) for room in rooms)
        if not np.array_equal(mine, theirs):
            return False
    return True
