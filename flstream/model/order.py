"""Order of a state dict's tensors, which is not the order of their bytes.

A layout follows from the set of tensors alone. But code may walk over a state dict and over a
module's parameters side by side, so training code gets the tensors in the order of the factory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeVar

import msgspec
import xxhash

from flstream.model.layout import Layout

ORDER = "flstream.order"
"""Key of a checkpoint's metadata that has the order, as :func:`order_text` writes it."""

ValueT = TypeVar("ValueT")


def order_text(layout: Layout, names: Iterable[str]) -> str:
    """Return the place of each name in a layout, as text; empty in the layout's own order.

    Args:
        layout: Layout of the model.
        names: All names of its tensors and aliases, in the order to keep.
    """
    places = {name: place for place, name in enumerate(layout.names)}
    order = [places[name] for name in names]
    return "" if order == sorted(order) else msgspec.json.encode(order).decode()


def order_digest(text: str) -> str:
    """Return the digest of an order's text; that of a body does not cover it. Empty for none."""
    return xxhash.xxh3_128_hexdigest(text.encode()) if text else ""


def in_order(values: Mapping[str, ValueT], layout: Layout, text: str) -> dict[str, ValueT]:
    """Return values by name in the order of a text; in the layout's for an empty one.

    Args:
        values: Values by names of the layout's tensors and aliases.
        layout: Layout of the model.
        text: As :func:`order_text` gives it. One that does not fit the layout gives no order.
    """
    names, places = layout.names, _places(text)
    if sorted(places) == list(range(len(names))):
        names = [names[place] for place in places]
    return {name: values[name] for name in names if name in values}


@lru_cache(maxsize=1)
def _places(text: str) -> tuple[int, ...]:
    try:
        return msgspec.json.decode(text, type=tuple[int, ...])
    except msgspec.DecodeError:
        return ()
