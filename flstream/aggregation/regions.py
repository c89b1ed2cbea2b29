"""Regions: ranges of the body with one type of elements from the same updates.

The numbers of a region may have others beside them, in a file of their own: sums, or moments.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flstream.aggregation.fold_rule import FoldRule
from flstream.aggregation.update import Reading
from flstream.errors import AggregationError, UpdateRefusedError
from flstream.job.bodies import MAIN
from flstream.model.dtypes import BY_CODE, FLOATS, SCALES, unit
from flstream.model.layout import Layout, TensorInfo, TypeRun

if TYPE_CHECKING:
    from flstream.aggregation.rules import AggregationRule


class Region(NamedTuple):
    """A range of the body that is folded in one way."""

    dtype: str  # type of its elements
    start: int  # offset in bytes of its first byte in the body
    stop: int  # offset in bytes after its last byte
    carriers: int  # set of the updates that have it: bit i for the one at place i of the cohort
    before: float  # weight of the updates that were summed earlier
    is_selected: bool = True  # whether the rule aggregates it
    body: str = MAIN  # name of the body that it belongs to; empty for the model itself
    fold_rule: FoldRule | None = None  # how the workflow has it combined; None for the job's way

    @property
    def is_kept(self) -> bool:
        """Whether no update has the region, so that the model's values stay."""
        return not self.carriers and not self.before

    @property
    def numbers(self) -> int:
        """Number of the region's numbers: see :func:`flstream.model.dtypes.numbers_in`."""
        return (self.stop - self.start) // unit(self.dtype)

    def weight_of(self, reading: Reading) -> float:
        """Return the weight of an update in the region."""
        if self.fold_rule is None:
            return reading.weight
        return self.fold_rule.weight_of(reading.update.place, reading.weight)

    def carried_by(self, place: int) -> bool:
        """Return whether the update at a place of the cohort has the region."""
        return bool(self.carriers >> place & 1)


def regions_of(
    layout: Layout,
    rule: AggregationRule,
    carried: Sequence[Collection[str] | None],
    before: Sequence[float],
) -> list[Region]:
    """Return the regions of a body, in order.

    ``carried`` has for each update the names of its tensors, None for all; ``before`` for each
    tensor of the layout the weight that was summed earlier.
    """
    regions: list[Region] = []
    selected = rule.selected(layout)
    # Bits, since sets of a thousand updates for many tensors would take the memory of a model.
    whole = sum(1 << place for place, names in enumerate(carried) if names is None)
    parts = [(1 << place, names) for place, names in enumerate(carried) if names is not None]
    for (name, dtype, _, start, stop), weight in zip(layout.tensors, before, strict=True):
        if start == stop:
            continue
        carriers, is_selected = 0, name in selected
        if is_selected:
            carriers = whole | sum(bit for bit, names in parts if name in names)
        if dtype in SCALES and (carriers or weight):
            raise AggregationError(
                f"tensor {name!r} is {dtype}, whose numbers are powers of two without sign or "
                "zero, so they cannot be averaged; leave it out with aggregation.exclude"
            )
        body = rule.body_of(name)
        fold_rule = rule.fold_rules.get(body) if dtype in FLOATS else None
        region = Region(dtype, start, stop, carriers, weight, is_selected, body, fold_rule)
        last = regions[-1] if regions else None
        if last and last[0] == region[0] and last[3:] == region[3:]:
            regions[-1] = last._replace(stop=region.stop)
        else:
            regions.append(region)
    return regions


def cut(regions: Sequence[Region], start: int, stop: int) -> list[Region]:
    """Return the regions in ``[start, stop)``, cut at its ends."""
    first = bisect_right(regions, start, key=lambda region: region.start) - 1
    last = bisect_left(regions, stop, key=lambda region: region.start)
    return [
        region._replace(start=max(region.start, start), stop=min(region.stop, stop))
        for region in regions[first:last]
    ]


def not_finite(
    site: str, layout: Layout, region: Region | TypeRun, index: int, value: float
) -> UpdateRefusedError:
    """Return the error that refuses an update for an element of a region."""
    return UpdateRefusedError(
        site,
        f"is not finite: {element_at(layout, region, index)} is {value}; lower the learning rate, "
        "or allow it with aggregation.on_nonfinite = allow",
    )


def element_at(layout: Layout, region: Region | TypeRun, index: int) -> str:
    """Describe an element of a region by its tensor, and its index in the tensor."""
    offset = region.start + index * unit(region.dtype)
    spec = next(layout.overlapping(offset, offset + 1))
    element = (offset - spec.start) // BY_CODE[spec.dtype].itemsize
    place = [int(position) for position in np.unravel_index(element, spec.shape)]
    return f"tensor {spec.name!r} at {place}" if place else f"tensor {spec.name!r}"


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
