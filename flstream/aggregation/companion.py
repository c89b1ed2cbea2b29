"""A file whose tensors go with those of a model: a sum or a moment beside each of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from flstream.aggregation.elements import unit
from flstream.aggregation.zones import Zone
from flstream.model.dtypes import BY_CODE
from flstream.model.header import TensorSpec
from flstream.model.layout import Layout


class Beside(NamedTuple):
    """A tensor that goes with one of a model's.

    Attributes:
        kind: what it is; its name is that, a dot, and the model's tensor's name.
        of: the model's tensor.
        dtype: its own element type.
    """

    kind: str
    of: TensorSpec
    dtype: str


class Companion:
    """Where in such a file the numbers lie that go with a zone of the model.

    Tensors of one kind lie as the model's do, so that what goes with a zone is one range.

    Args:
        model: layout of the model.
        tensors: in the model's order.
        extra: further tensors, which go with none of the model's: name, dtype, shape.

    Attributes:
        layout: of the file.
    """

    def __init__(
        self,
        model: Layout,
        tensors: Iterable[Beside],
        extra: Iterable[tuple[str, str, tuple[int, ...]]] = (),
    ) -> None:
        self._model = model
        entries = [*extra, *(_entry(each) for each in tensors)]
        # By falling size of the elements, so that each lies at a multiple of its own.
        entries.sort(key=lambda entry: -BY_CODE[entry[1]].itemsize)
        specs, offset = [], 0
        for name, dtype, shape in entries:
            stop = offset + math.prod(shape) * BY_CODE[dtype].itemsize
            specs.append(TensorSpec(name, dtype, shape, offset, stop))
            offset = stop
        self.layout = Layout(specs)

    def place(self, kind: str, zone: Zone, first: int = 0, last: int | None = None) -> Place:
        """Where the numbers ``first`` to ``last`` of a zone have those of this kind."""
        last = zone.numbers if last is None else last
        spec = next(self._model.overlapping(zone.start, zone.start + 1))
        beside = self.layout.by_name[f"{kind}.{spec.name}"]
        size = unit(beside.dtype)
        start = beside.start + (zone.start - spec.start) // unit(zone.dtype) * size
        return Place(beside.dtype, start + first * size, start + last * size)


class Place(NamedTuple):
    """A range of the file, and its element type."""

    dtype: str
    start: int
    stop: int

    @property
    def numbers(self) -> int:
        """How many numbers it has."""
        return (self.stop - self.start) // unit(self.dtype)


def _entry(beside: Beside) -> tuple[str, str, tuple[int, ...]]:
    # A complex tensor has two numbers an element, also where they lie as reals beside it.
    parts = (2,) if beside.of.dtype == "C64" and beside.dtype != "C64" else ()
    return f"{beside.kind}.{beside.of.name}", beside.dtype, (*beside.of.shape, *parts)
