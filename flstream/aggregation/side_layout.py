"""File of tensors that accompany a model's, such as a sum or a moment of each."""

from __future__ import annotations

import math
from collections.abc import Iterable

from flstream.aggregation.regions import Region
from flstream.model.dtypes import BY_CODE, unit
from flstream.model.header import TensorInfo
from flstream.model.layout import Layout


class SideLayout:
    """Layout of a side file, with the place of each region's numbers in the file.

    A tensor's name is its kind, a dot, and the name of the model's tensor. Tensors of one kind are
    in the model's order, so that the numbers of a region are one range. They are given in that
    order, as (kind, the model's tensor, dtype code).
    """

    def __init__(self, model: Layout, beside: Iterable[tuple[str, TensorInfo, str]]) -> None:
        self._model = model
        entries = []
        for kind, of, dtype in beside:
            # A complex tensor has two numbers an element, also where they are reals in the other.
            parts = (2,) if of.dtype == "C64" != dtype else ()
            entries.append((f"{kind}.{of.name}", dtype, (*of.shape, *parts)))
        # By falling size of the elements, so that each lies at a multiple of its own.
        entries.sort(key=lambda entry: -BY_CODE[entry[1]].itemsize)
        specs, offset = [], 0
        for name, dtype, shape in entries:
            stop = offset + math.prod(shape) * BY_CODE[dtype].itemsize
            specs.append(TensorInfo(name, dtype, shape, offset, stop))
            offset = stop
        self.layout = Layout(specs)

    def place(self, kind: str, region: Region, part: slice | None = None) -> tuple[str, int, int]:
        """Return dtype, start and stop, in the file, of the numbers of a part of a region."""
        first, last = (0, region.numbers) if part is None else (part.start, part.stop)
        spec = next(self._model.overlapping(region.start, region.start + 1))
        beside = self.layout.by_name[f"{kind}.{spec.name}"]
        size = unit(beside.dtype)
        start = beside.start + (region.start - spec.start) // unit(region.dtype) * size
        return beside.dtype, start + first * size, start + last * size
