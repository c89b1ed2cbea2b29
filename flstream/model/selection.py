"""Selections of a model's tensors: patterns of whole names, and parts of nearly equal bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from flstream.errors import WorkflowError
from flstream.text import brief_names

if TYPE_CHECKING:
    from flstream.model.layout import Layout

PartOrder = Literal["strided", "in_order"]
PART_ORDERS: tuple[PartOrder, ...] = ("strided", "in_order")

# Up to the first number of a name stands the layer: "blocks.3" of "blocks.3.attention.weight".
_LAYER = re.compile(r"(?:.*?\.)??\d+(?=\.|$)")


@dataclass(frozen=True)
class Part:
    """One of the parts of a model's tensors, which have nearly equal bytes.

    A layer is never divided. Which tensors a part has follows from the model alone.

    Attributes:
        index: Its place among the parts, from 0.
        count: Number of parts.
        order: ``strided``: layer after layer goes to the next part, so that each has shallow and
            deep ones. ``in_order``: each part has layers that follow each other.
    """

    index: int
    count: int
    order: PartOrder = "strided"


Selection = tuple[str | Part, ...]
"""Regular expressions that match whole names of tensors, and parts."""


class ModelParts(NamedTuple):
    """Tensors of a model that the sites of a training are sent, and send back.

    Attributes:
        receive: The tensors that they are sent when they begin; None for all.
        send: The tensors that they send back; None for all.
        late: The tensors that they are sent while they train, of the model that is made then; None
            for none.
    """

    receive: Selection | None = None
    send: Selection | None = None
    late: Selection | None = None

    @property
    def by_name(self) -> dict[str, Selection]:
        """The selections by name, of those that are not all tensors."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def selected_names(
    what: str, selection: Selection, layout: Layout, order: tuple[str, ...]
) -> frozenset[str]:
    """Return the names of the selected tensors; of tied names, the layout's own.

    Args:
        what: The argument that has the selection, for messages.
        selection: Patterns and parts.
        layout: Layout of the model.
        order: The layout's names in the order of the model's layers.

    Raises:
        WorkflowError: A pattern matches no name, or there are fewer layers than parts.
    """
    escaped = {re.escape(name): own for own, names in layout.all_names.items() for name in names}
    selected: set[str] = set()
    for entry in selection:
        if isinstance(entry, Part):
            selected |= _parts(entry.count, entry.order, layout, order)[entry.index]
        elif entry in escaped:
            selected.add(escaped[entry])
        else:
            expression = re.compile(entry)
            matching = {
                own
                for own, names in layout.all_names.items()
                if any(expression.fullmatch(name) for name in names)
            }
            if not matching:
                raise WorkflowError(
                    f"{what} has the pattern {entry!r}, which matches no whole name of a tensor: "
                    f"the model has {brief_names(layout.names)}"
                )
            selected |= matching
    return frozenset(selected)


def _parts(
    count: int, order: PartOrder, layout: Layout, names: tuple[str, ...]
) -> Sequence[frozenset[str]]:
    """Return the names of each part's tensors."""
    layers: dict[str, list[str]] = {}
    for name in names:
        if name in layout.by_name:
            layers.setdefault(_layer_of(name), []).append(name)
    if len(layers) < count:
        raise WorkflowError(
            f"the model was to be divided into {count} parts, and has {len(layers)} layers: "
            f"{brief_names(list(layers))}; ask for fewer parts"
        )
    sizes = {
        layer: sum(layout.by_name[name].nbytes for name in members)
        for layer, members in layers.items()
    }
    divide = _strided if order == "strided" else _consecutive
    return [
        frozenset(name for layer in part for name in layers[layer]) for part in divide(sizes, count)
    ]


def _layer_of(name: str) -> str:
    match = _LAYER.match(name)
    return match[0] if match is not None else name.rpartition(".")[0] or name


def _strided(sizes: dict[str, int], count: int) -> Iterable[Sequence[str]]:
    """Give each layer in turn to the part with the fewest bytes; embeddings and heads last."""
    parts: list[list[str]] = [[] for _ in range(count)]
    filled = [(0, 0)] * count  # bytes, layers
    numbered = [layer for layer in sizes if _LAYER.match(layer)]
    others = sorted(sizes.keys() - set(numbered), key=lambda layer: (-sizes[layer], layer))
    for layer in (*numbered, *others):
        place = min(range(count), key=lambda index: (filled[index], index))
        parts[place].append(layer)
        nbytes, layers = filled[place]
        filled[place] = nbytes + sizes[layer], layers + 1
    return parts


def _consecutive(sizes: dict[str, int], count: int) -> Iterable[Sequence[str]]:
    """Cut the layers into parts that follow each other."""
    layers, remaining = list(sizes), sum(sizes.values())
    for following in range(count - 1, -1, -1):
        part, goal = [layers.pop(0)], remaining / (following + 1)
        nbytes = sizes[part[0]]
        while len(layers) > following:
            more = sizes[layers[0]]
            if following and nbytes + more - goal > goal - nbytes:
                break
            part.append(layers.pop(0))
            nbytes += more
        remaining -= nbytes
        yield part
