"""Updates of one walk, read side by side range by range.

The part of an update in a region has its values for the model there, in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import cycle
from typing import Protocol

import numpy as np

from flstream.aggregation.ahead import read_ahead
from flstream.aggregation.elements import Array, block_room
from flstream.aggregation.regions import Region, cut, not_finite, regions_of
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.steps import GROUPS_READ, RANGES_TOGETHER
from flstream.aggregation.update import CollectedUpdate, Reading
from flstream.model.dtypes import FLOATS, first_not_finite, load, numbers_in
from flstream.model.source import Scratch, Source, view_of

# Least bytes of all updates for which handing work to a thread saves more than it costs.
_LEAST_READ_AHEAD_BYTES = 8 << 20
# Updates that are opened at the same time.
_MOST_OPENED = 8


class BaseValues:
    """The model that the updates started from; each range is read at most once."""

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
    """Part of an update in a region of a range; scales its difference from the model."""

    def __init__(self, cohort: UpdateSet, place: int, region: Region, data: memoryview) -> None:
        reading = cohort.readings[place]
        update = reading.update
        self.place, self.site, self.region = place, update.site, region
        self.weight = region.weight_of(reading)
        self._sent = numbers_in(region.dtype, data)
        self._is_difference = update.params_type == "DIFF"
        if region.body:
            # Whether the params are weights or differences says nothing of other bodies.
            self._is_difference = region.fold_rule is not None and region.fold_rule.base == "zero"
        self._old = cohort.base_of(update)
        # The model that it is folded into, where it is compared with that and not its own base.
        is_towards = region.fold_rule is not None and region.fold_rule.base == "model"
        self._model = cohort.old if is_towards and self._old is not cohort.old else None
        self._scale = 1.0 if region.body else cohort.scales[place]
        # The model's layout, where numbers are to be finite.
        self._checked = cohort.checked

    def reals(self, block: slice, out: Array) -> None:
        """Write the summands of a block into a float64 array of its length.

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
        """Write a block's unscaled differences from old values into a float64 array."""
        self.sent(block, out)
        if self._model is not None:
            if self._is_difference:
                np.add(out, self._old.block(self.region, block), out=out)
            np.subtract(out, self._model.block(self.region, block), out=out)
        elif not self._is_difference:
            np.subtract(out, self._old.block(self.region, block), out=out)

    def sent(self, block: slice, out: Array) -> None:
        """Write a block's numbers as they were sent into a float64 array."""
        load(self._sent[block], out)
        if self._checked is not None:
            index = first_not_finite(out, block.start)
            if index is not None:
                value = float(out[index - block.start])
                raise not_finite(self.site, self._checked, self.region, index, value)


Contribution = tuple[int, Sequence[UpdatePart], bool]
"""Parts of the updates that are read together, for one region of a range.

It has the region's index, a part for each of these updates that has the region, and whether the
cohort's last update is among those that were read. If it is, the parts may be used until the next
range is begun; else only until the next contribution is asked for, which overwrites their bytes.
"""


class Fold(Protocol):
    """A way to make the next model of updates, one range at a time."""

    def begin(self, regions: Sequence[Region]) -> None:
        """Begin a range that consists of these regions."""
        ...

    def add(self, index: int, parts: Sequence[UpdatePart], *, are_last: bool) -> None:
        """Add the parts of further updates for the region at an index of the range.

        Updates come in the cohort's order, and every update among a region's carriers is added. The
        bytes of the last parts stay valid until all results have been returned; those of others
        only during this call.
        """
        ...

    def result(self, index: int, block: slice) -> Array:
        """Return the new values of a region's block, once, as float64 to overwrite."""
        ...


class UpdateSet:
    """Updates that a walk reads together, in the order in which it folds them.

    ``scales`` are factors of the updates' differences from the model, ``weights`` stand in place of
    the rule's, and ``before`` has for each tensor the weight that was summed earlier. With
    ``checks_finite``, every number has to be finite. A mean need not check: its result shows
    whether a number is not, and only then the updates are read again and checked.
    """

    def __init__(
        self,
        base: Source,
        updates: Sequence[CollectedUpdate],
        rule: AggregationRule,
        step: int,
        *,
        scales: Sequence[float] | None = None,
        weights: Sequence[float] | None = None,
        before: Sequence[float] | None = None,
        checks_finite: bool = False,
    ) -> None:
        layout = self._layout = base.layout
        self.step = step
        self._is_large = layout.nbytes * len(updates) >= _LEAST_READ_AHEAD_BYTES
        weighed = list(zip(updates, weights or map(rule.weight_of, updates), strict=True))

        def opened(update: CollectedUpdate, weight: float) -> Reading:
            return Reading(update, layout, step, weight)

        if self._is_large:  # at once, since each is compared with the model first
            with ThreadPoolExecutor(_MOST_OPENED, "opening") as threads:
                self.readings = list(threads.map(lambda pair: opened(*pair), weighed))
        else:
            self.readings = [opened(*pair) for pair in weighed]
        self.scales = scales or [1.0] * len(updates)
        self.checked = layout if checks_finite and rule.on_nonfinite == "reject" else None
        self.old = BaseValues(base, step)
        # Values of other models that updates were trained from, each read once.
        others = {id(update.base): update.base for update in updates if update.base is not None}
        self._others = {key: BaseValues(other, step) for key, other in others.items()}
        self.regions = regions_of(
            layout,
            rule,
            [
                reading.carried.by_name if reading.update.partial else None
                for reading in self.readings
            ],
            before or [0.0] * len(layout.tensors),
        )

    def ranges(self) -> Iterator[tuple[int, int, Sequence[Region], Iterator[Contribution]]]:
        """Yield start, stop, regions and contributions of each range, and read ahead."""
        scratches = cycle([[Scratch() for _ in range(RANGES_TOGETHER)] for _ in range(GROUPS_READ)])
        reads = (
            partial(self._read, first, start, stop, next(scratches))
            for start, stop in self._layout.ranges(self.step)
            for first in range(0, len(self.readings), RANGES_TOGETHER)
        )
        group_reads = (
            read_ahead(reads, GROUPS_READ - 1)
            if self._is_large
            else nullcontext(read() for read in reads)
        )
        with group_reads as groups:
            for start, stop in self._layout.ranges(self.step):
                for old in (self.old, *self._others.values()):
                    old.begin(start, stop)
                regions = cut(self.regions, start, stop)
                yield start, stop, regions, self._contributions(start, regions, groups)

    def _read(
        self, first: int, start: int, stop: int, scratches: Sequence[Scratch]
    ) -> list[memoryview]:
        """Read a range of the updates that the walk folds together."""
        together = self.readings[first : first + len(scratches)]
        return [
            reading.read(start, stop, scratch)
            for reading, scratch in zip(together, scratches, strict=False)  # the last may be fewer
        ]

    def _contributions(
        self, start: int, regions: Sequence[Region], groups: Iterator[list[memoryview]]
    ) -> Iterator[Contribution]:
        count = len(self.readings)
        for first in range(0, count, RANGES_TOGETHER):
            ranges = next(groups)
            for index, region in enumerate(regions):
                parts = [
                    self._part(place, region, start, data)
                    for place, data in enumerate(ranges, first)
                    if region.carried_by(place)
                ]
                if parts:
                    yield index, parts, first + len(ranges) == count

    def base_of(self, update: CollectedUpdate) -> BaseValues:
        """Return the values of the model that an update was trained from."""
        return self._others.get(id(update.base), self.old)

    def part(self, place: int, region: Region, scratch: Scratch) -> UpdatePart:
        """Read the part of an update in a region of any place, for who reads no ranges."""
        for old in (self.old, *self._others.values()):
            old.begin(region.start, region.stop)
        data = self.readings[place].read(region.start, region.stop, scratch)
        return self._part(place, region, region.start, data)

    def _part(self, place: int, region: Region, start: int, data: memoryview) -> UpdatePart:
        """Make the part of an update in a region from its bytes of a range."""
        reading = self.readings[place]
        offset = reading.place(region.start) - reading.place(start)
        data = data[offset : offset + region.stop - region.start]
        if not reading.update.has_changed and not region.body:
            # One differing range is enough, so this runs once for a trained update.
            reading.compare(data, self.base_of(reading.update).of(region))
        return UpdatePart(self, place, region, data)
