"""Order of a state dict's tensors, which is not the order of their bytes.

A layout follows from the set of tensors alone. But code may walk over a state dict and over a
module's parameters side by side, so training code gets the tensors in the order of the factory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

import msgspec

from flstream.model.layout import Layout

ORDER = "flstream.order"
"""Key of a checkpoint's metadata that has the order, as :func:`order_text` writes it."""

ValueT = TypeVar("ValueT")


def order_of(layout: Layout, names: Iterable[str]) -> list[int]:
    """Return the place of each name in a layout; nothing in the layout's own order.

    Args:
        layout: Layout of the model.
        names: All names of its tensors and aliases, in the order to keep.
    """
    places = {name: place for place, name in enumerate(layout.names)}
    order = [places[name] for name in names]
    return [] if order == sorted(order) else order


def names_in_order(layout: Layout, order: Sequence[int]) -> list[str] | None:
    """Return the names at places; all in the layout's order if there are no places."""
    names = layout.names
    if order and sorted(order) != list(range(len(names))):
        return None
    return [names[place] for place in order] or names


def order_text(layout: Layout, names: Iterable[str]) -> str:
    """Return an order as text: see :func:`order_of`; empty where it is the layout's."""
    order = order_of(layout, names)
    return msgspec.json.encode(order).decode() if order else ""


def in_order(values: Mapping[str, ValueT], layout: Layout, text: str) -> dict[str, ValueT]:
    """Return values by name in the order of a text; in the layout's for an empty one.

    Args:
        values: Values by names of the layout's tensors and aliases.
        layout: Layout of the model.
        text: As :func:`order_text` gives it. One that does not fit the layout gives no order.
    """
    names = names_in_order(layout, _places(text)) or layout.names
    return {name: values[name] for name in names if name in values}


@lru_cache(maxsize=1)
def _places(text: str) -> tuple[int, ...]:
    try:
        return msgspec.json.decode(text, type=tuple[int, ...])
    except msgspec.DecodeError:
        return ()
