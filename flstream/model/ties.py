"""Tied weights: names that share one tensor, which is sent once and tied again on arrival."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flstream.errors import LayoutError
from flstream.model.device import TensorView
from flstream.model.source import Scratch
from flstream.model.staging import read_piece

_STEP = 1 << 20


def find_ties(tensors: Mapping[str, TensorView]) -> dict[str, str]:
    """Find the names that show the same elements of the same memory as another name.

    Returns:
        The name that stands for the tensor, by each of its other names. It is the first in
        alphabetical order, so that it does not depend on the order of the state dict.
    """
    kept: dict[tuple[object, ...], str] = {}
    ties = {}
    for name in sorted(tensors):
        tensor = tensors[name]
        if tensor.nbytes:  # empty tensors have no byte to share
            first = kept.setdefault(tensor.place, name)
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
    kept = dict(tensors)
    for alias, name in ties.items():
        if alias not in kept:
            continue
        mine = kept.pop(alias)
        if not _same_bytes(mine, kept.setdefault(name, mine)):
            raise LayoutError(
                f"tensor {alias!r} is tied to {name!r} in the model, but the update holds "
                "different values; tie them again or untie them in the model"
            )
    return kept


def _same_bytes(left: TensorView, right: TensorView) -> bool:
    if left.place == right.place:
        return True
    if (left.code, left.shape) != (right.code, right.shape):
        return False
    pieces = left.piece(), right.piece()
    scratches = Scratch(), Scratch()
    size = len(pieces[0])
    for start in range(0, size, _STEP):
        one, other = (
            np.frombuffer(read_piece(piece, start, min(start + _STEP, size), scratch), np.uint8)
            for piece, scratch in zip(pieces, scratches, strict=True)
        )
        if not np.array_equal(one, other):
            return False
    return True
