"""The order in which a state dict lists its tensors, which is not that of their bytes.

A layout follows from the set of tensors alone. But code may walk over a state dict and over a
module's parameters side by side, so training code gets the tensors in the order of the factory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeVar

from flstream.model.layout import Layout

ORDER = "flstream.order"
"""Key of a checkpoint's metadata that has the order, as :func:`order_text` writes it."""

ValueT = TypeVar("ValueT")


def order_text(layout: Layout, names: Iterable[str]) -> str:
    """The order of a state dict as text: of each name, its place in the layout and its aliases.

    Args:
        layout: Layout of the model.
        names: All names of its tensors and aliases, in the order to keep.

    Returns:
        The text; empty where the order is the layout's.
    """
    places = {name: place for place, name in enumerate(_names(layout))}
    order = [places[name] for name in names]
    return "" if order == sorted(order) else json.dumps(order, separators=(",", ":"))


def in_order(values: Mapping[str, ValueT], layout: Layout, text: str) -> dict[str, ValueT]:
    """Values by name in the order that a text gives, or in the layout's if it gives none.

    Args:
        values: Values by names of the layout's tensors and aliases.
        layout: Layout of the model.
        text: As :func:`order_text` gives it. One that does not fit the layout gives no order.
    """
    names = _names(layout)
    order = _places(text)
    if len(order) == len(names) == len(set(order)) and set(order) <= set(range(len(names))):
        names = [names[place] for place in order]
    return {name: values[name] for name in names if name in values}


def _names(layout: Layout) -> list[str]:
    return [*(spec.name for spec in layout.tensors), *layout.aliases]


@lru_cache(maxsize=1)
def _places(text: str) -> tuple[int, ...]:
    try:
        places = json.loads(text)
    except ValueError:
        return ()
    is_list = isinstance(places, list) and all(isinstance(each, int) for each in places)
    return tuple(places) if is_list else ()
