"""Regions: ranges of the body for which the same updates have elements of one type.

The part of an update in a region has its values for the model there, in float64.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flstream.aggregation.elements import Array, block_room
from flstream.aggregation.fold_rule import FoldRule
from flstream.aggregation.update import UpdateSource
from flstream.errors import AggregationError, UpdateRefusedError
from flstream.job.bodies import MAIN
from flstream.model.dtypes import BY_CODE, FLOATS, SCALES, first_not_finite, load, numbers_in, unit
from flstream.model.layout import Layout, TypeRun
from flstream.model.source import Scratch, Source, view_of

if TYPE_CHECKING:
    from flstream.aggregation.rules import AggregationRule


class Region(NamedTuple):
    """A range of the body that is folded in one way.

    Attributes:
        dtype: Type of its elements.
        start: Offset in bytes of its first byte in the body.
        stop: Offset in bytes after its last byte.
        carriers: Set of the updates that have it: bit i for the one at place i of the cohort.
        before: Weight of the updates that were summed earlier.
        is_selected: Whether the rule aggregates it.
        body: Name of the body that it belongs to; empty for the model itself.
        fold_rule: How the workflow has it combined; None for the job's way.
    """

    dtype: str
    start: int
    stop: int
    carriers: int
    before: float
    is_selected: bool = True
    body: str = MAIN
    fold_rule: FoldRule | None = None

    @property
    def is_kept(self) -> bool:
        """Whether no update has it, so that it keeps its values."""
        return not self.carriers and not self.before

    @property
    def numbers(self) -> int:
        """Number of its numbers: see :func:`flstream.model.dtypes.numbers_in`."""
        return (self.stop - self.start) // unit(self.dtype)

    def weight_of(self, update: UpdateSource) -> float:
        """Weight of an update here."""
        if self.fold_rule is None:
            return update.weight
        return self.fold_rule.weight_of(update.site, update.place, update.weight)

    def carried_by(self, place: int) -> bool:
        """Return whether the update at this place of the cohort has it."""
        return bool(self.carriers >> place & 1)


def regions_of(
    layout: Layout,
    rule: AggregationRule,
    carried: Sequence[Collection[str] | None],
    before: Sequence[float],
) -> list[Region]:
    """Return the regions of a body, in order.

    Args:
        layout: Layout of the body.
        rule: Rule that selects the tensors that are aggregated; the others keep their values.
        carried: For each update the names of its tensors; None for one that has all.
        before: For each tensor of the layout, the weight summed earlier.

    Raises:
        AggregationError: A tensor that is to be aggregated has numbers without a mean.
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


class BaseValues:
    """The model that the updates started from, of which each range is read at most once."""

    def __init__(self, base: Source, step: int) -> None:
        self._base = base
        self._scratch = Scratch()
        self._range = (0, 0)
        self._data: memoryview | None = None
        self._room = block_room({spec.dtype for spec in base.layout.tensors}, step)

    def begin(self, start: int, stop: int) -> None:
        """Begin a range."""
        self._range = (start, stop)
        self._data = None

    def of(self, region: Region) -> memoryview:
        """Return the model's bytes for a region of the range."""
        start, stop = self._range
        if self._data is None:
            self._data = view_of(self._base, start, stop, self._scratch)
        return self._data[region.start - start : region.stop - start]

    def numbers(self, region: Region) -> Array:
        """Return the model's numbers in a region of the range."""
        return numbers_in(region.dtype, self.of(region))

    def block(self, region: Region, block: slice) -> Array:
        """Return a block of the model's numbers in float64, valid until the next call."""
        old = self._room[: block.stop - block.start]
        load(self.numbers(region)[block], old)
        return old


class UpdatePart:
    """The part of one update in one region of a range.

    Its difference from the old values is scaled. Its numbers are ``checked`` to be finite where
    there is the layout of the model, for the name of the tensor that has another one.
    """

    def __init__(
        self,
        place: int,
        update: UpdateSource,
        region: Region,
        data: memoryview,
        old: BaseValues,
        scale: float,
        checked: Layout | None,
    ) -> None:
        self.place = place
        self.site = update.site
        self.weight = region.weight_of(update)
        self.region = region
        self._sent = numbers_in(region.dtype, data)
        self._is_difference = update.params_type == "DIFF"
        if region.body:
            # Whether the params are weights or differences says nothing of other bodies.
            self._is_difference = region.fold_rule is not None and region.fold_rule.base == "zero"
        self._old = old
        self._scale = scale
        self._checked = checked

    def reals(self, block: slice, out: Array) -> None:
        """Write what is summed of a block into a float64 array of its length.

        That is the new values, or, under a rule of the workflow's, the differences that it sums.
        Integers are not scaled; their differences wrap, and so do sums of these with the old ones.
        """
        is_float = self.region.dtype in FLOATS
        is_new = self._scale == 1 and self.region.fold_rule is None
        if not self._is_difference and (is_new or not is_float):
            self.sent(block, out)
        elif not is_float:
            old, sent = self._old.numbers(self.region)[block], self._sent[block]
            # A difference of bools selects those to flip.
            np.copyto(out, old ^ sent if self.region.dtype == "BOOL" else old + sent)
        else:
            self.differences(block, out)
            if self._scale != 1:
                np.multiply(out, self._scale, out=out)
            if self.region.fold_rule is None:
                np.add(out, self._old.block(self.region, block), out=out)

    def differences(self, block: slice, out: Array) -> None:
        """Write a block's differences from the old values, before scaling, into a float64 array."""
        self.sent(block, out)
        if not self._is_difference:
            np.subtract(out, self._old.block(self.region, block), out=out)

    def sent(self, block: slice, out: Array) -> None:
        """Write a block's numbers as they were sent into a float64 array."""
        load(self._sent[block], out)
        if self._checked is not None:
            index = first_not_finite(out, block.start)
            if index is not None:
                value = float(out[index - block.start])
                raise not_finite(self.site, self._checked, self.region, index, value)


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
    """Describe an element of a region: the name of its tensor, and its index in that."""
    offset = region.start + index * unit(region.dtype)
    spec = next(layout.overlapping(offset, offset + 1))
    element = (offset - spec.start) // BY_CODE[spec.dtype].itemsize
    place = [int(each) for each in np.unravel_index(element, spec.shape)]
    return f"tensor {spec.name!r} at {place}" if place else f"tensor {spec.name!r}"
