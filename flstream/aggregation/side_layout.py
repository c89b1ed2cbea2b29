"""A file with tensors that accompany those of a model, such as a sum or a moment of each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from flstream.aggregation.elements import unit
from flstream.aggregation.regions import Region
from flstream.model.dtypes import BY_CODE
from flstream.model.header import TensorInfo
from flstream.model.layout import Layout

_COMPLEX = ("C64", "C128")


class SideTensor(NamedTuple):
    """A tensor that accompanies one of a model's.

    Attributes:
        kind: Kind of the tensor; its name is the kind, a dot, and the name of the model's tensor.
        of: Tensor of the model.
        dtype: Its own element type.
    """

    kind: str
    of: TensorInfo
    dtype: str


class SideLayout:
    """The layout of such a file, and the places in it of the numbers of a model's regions.

    Tensors of one kind are in the model's order, so that the numbers of a region are one range.

    Args:
        model: Layout of the model.
        tensors: Tensors in the model's order.
        extra: Further tensors as (name, dtype code, shape), which accompany none of the model's.

    Attributes:
        layout: Layout of the file.
    """

    def __init__(
        self,
        model: Layout,
        tensors: Iterable[SideTensor],
        extra: Iterable[tuple[str, str, tuple[int, ...]]] = (),
    ) -> None:
        self._model = model
        entries = [*extra, *(_entry(each) for each in tensors)]
        # By falling size of the elements, so that each lies at a multiple of its own.
        entries.sort(key=lambda entry: -BY_CODE[entry[1]].itemsize)
        specs, offset = [], 0
        for name, dtype, shape in entries:
            stop = offset + math.prod(shape) * BY_CODE[dtype].itemsize
            specs.append(TensorInfo(name, dtype, shape, offset, stop))
            offset = stop
        self.layout = Layout(specs)

    def place(
        self, kind: str, region: Region, first: int = 0, last: int | None = None
    ) -> SideRange:
        """Return where the numbers ``first`` to ``last`` of a region have those of this kind."""
        last = region.numbers if last is None else last
        spec = next(self._model.overlapping(region.start, region.start + 1))
        beside = self.layout.by_name[f"{kind}.{spec.name}"]
        size = unit(beside.dtype)
        start = beside.start + (region.start - spec.start) // unit(region.dtype) * size
        return SideRange(beside.dtype, start + first * size, start + last * size)


class SideRange(NamedTuple):
    """A range of the file, and its element type.

    Attributes:
        dtype: Type of its elements.
        start: Offset in bytes of its first byte in the file's body.
        stop: Offset in bytes after its last byte.
    """

    dtype: str
    start: int
    stop: int

    @property
    def numbers(self) -> int:
        """Number of its numbers."""
        return (self.stop - self.start) // unit(self.dtype)


def _entry(beside: SideTensor) -> tuple[str, str, tuple[int, ...]]:
    # A complex tensor has two numbers an element, also where they are reals in the other tensor.
    parts = (2,) if beside.of.dtype in _COMPLEX and beside.dtype not in _COMPLEX else ()
    return f"{beside.kind}.{beside.of.name}", beside.dtype, (*beside.of.shape, *parts)
