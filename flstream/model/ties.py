"""Tied weights: names of one tensor, which travels once and is tied on arrival."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from flstream.errors import LayoutError
from flstream.model.header import check_name
from flstream.model.tensor_view import TensorView

_STEP = 1 << 20


def find_ties(places: Mapping[str, Hashable]) -> dict[str, str]:
    """Return the name that stands for a tensor, by each of its other names.

    It is the first in alphabetical order, so that it does not depend on that of the state dict.
    Tensors are given by a key of their elements in memory.
    """
    firsts: dict[Hashable, str] = {}
    ties = {}
    for name in sorted(places):
        first = firsts.setdefault(places[name], name)
        if first != name:
            ties[name] = first
    return ties


def distinct_views(
    tensors: Mapping[str, object], tied: Mapping[str, str] | None, *, writable: bool = False
) -> tuple[dict[str, TensorView], Mapping[str, str]]:
    """View tensors as bytes, tied ones once.

    Training often breaks a tie in its results, by cloning every value, or lists a tied parameter
    under one of its names only, as ``Module.named_parameters`` does. Neither loses anything.
    Returned are the tensors without the aliases, and the aliases, which are found if None are
    given.
    """
    for name in tensors:
        check_name(name)
    distinct = {name: TensorView(name, value, writable=writable) for name, value in tensors.items()}
    if tied is None:
        tied = find_ties({name: view.place for name, view in distinct.items() if view.nbytes})
    for alias, name in tied.items():
        if alias not in distinct:
            continue
        mine = distinct.pop(alias)
        if not _same_bytes(mine, distinct.setdefault(name, mine)):
            raise LayoutError(
                f"tensor {alias!r} is tied to {name!r} in the model, but the update holds "
                "different values; tie them again or untie them in the model"
            )
    return distinct, tied


def _same_bytes(one: TensorView, other: TensorView) -> bool:
    if one.place == other.place:
        return True
    if (one.code, one.shape) != (other.code, other.shape):
        return False
    for start in range(0, one.nbytes, _STEP):
        stop = min(start + _STEP, one.nbytes)
        mine, theirs = bytearray(stop - start), bytearray(stop - start)
        one.read(start, stop, memoryview(mine))
        other.read(start, stop, memoryview(theirs))
        if mine != theirs:
            return False
    return True
