"""The updates of one walk, opened, and read side by side range by range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import cycle

from flstream.aggregation.ahead import read_ahead
from flstream.aggregation.regions import BaseValues, Region, UpdatePart, cut, regions_of
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.steps import GROUPS_READ, RANGES_TOGETHER
from flstream.aggregation.update import Reading, UpdateSource
from flstream.model.source import Scratch, Source

# Least bytes of all updates for which handing work to a thread saves more than it costs.
_LEAST_READ_AHEAD_BYTES = 8 << 20
# Updates that are opened at the same time.
_MOST_OPENED = 8


Contribution = tuple[int, Sequence[UpdatePart], bool]
"""The parts of the updates that are read together, for one region of a range: the region's index;
the parts of those updates that have it; and whether these are the last. The bytes of the last ones
stay valid until the next range is begun; those of others, until the next contribution."""


class UpdateSet:
    """Updates that are read together, in the order in which they are to be folded.

    Args:
        base: Model that the sites started from.
        updates: The updates.
        rule: Rule that selects the tensors, and says whether numbers must be finite.
        step: Bytes of a range.
        scales: Factors of each update's difference from the model; None for none.
        before: For each tensor the weight summed earlier; zeros by default.
        checks_finite: Whether every number is checked to be finite. A mean need not: its result
            shows whether a number is not, and only then are the updates read again and checked.

    Raises:
        UpdateRefusedError: An update does not fit the model.
    """

    def __init__(
        self,
        base: Source,
        updates: Sequence[UpdateSource],
        rule: AggregationRule,
        step: int,
        *,
        scales: Sequence[float] | None = None,
        before: Sequence[float] | None = None,
        checks_finite: bool = False,
    ) -> None:
        layout = self._layout = base.layout
        self.step = step
        self._is_large = layout.nbytes * len(updates) >= _LEAST_READ_AHEAD_BYTES
        if self._is_large:  # at once, since each is compared with the model first
            with ThreadPoolExecutor(_MOST_OPENED, "opening") as threads:
                self._readings = list(threads.map(lambda each: Reading(each, layout), updates))
        else:
            self._readings = [Reading(update, layout) for update in updates]
        self._scales = scales or [1.0] * len(updates)
        self._checked = layout if checks_finite and rule.on_nonfinite == "reject" else None
        self.old = BaseValues(base, step)
        # Those of other models that updates were trained from, each read once.
        others = {id(each.base): each.base for each in updates if each.base is not None}
        self._others = {key: BaseValues(other, step) for key, other in others.items()}
        self.regions = regions_of(
            layout,
            rule,
            [each.carried.by_name if each.update.partial else None for each in self._readings],
            before or [0.0] * len(layout.tensors),
        )

    def ranges(self) -> Iterator[tuple[int, int, Sequence[Region], Iterator[Contribution]]]:
        """Yield the ranges of the body, while those that follow are being read.

        Yields:
            Start, stop and regions of a range, and the contributions of all updates, in order.

        Raises:
            UpdateRefusedError: The numbers are checked, and one of them is not finite.
        """
        scratches = cycle([[Scratch() for _ in range(RANGES_TOGETHER)] for _ in range(GROUPS_READ)])
        reads = (
            partial(self._read, first, start, stop, next(scratches))
            for start, stop in self._layout.ranges(self.step)
            for first in range(0, len(self._readings), RANGES_TOGETHER)
        )
        made = (
            read_ahead(reads, GROUPS_READ - 1)
            if self._is_large
            else nullcontext(read() for read in reads)
        )
        with made as groups:
            for start, stop in self._layout.ranges(self.step):
                for old in (self.old, *self._others.values()):
                    old.begin(start, stop)
                regions = cut(self.regions, start, stop)
                yield start, stop, regions, self._contributions(start, regions, groups)

    def _read(
        self, first: int, start: int, stop: int, scratches: Sequence[Scratch]
    ) -> list[memoryview]:
        """Read a range of the updates that are folded together, beginning with one of them."""
        together = self._readings[first : first + len(scratches)]
        return [
            reading.read(start, stop, scratch)
            for reading, scratch in zip(together, scratches, strict=False)  # the last may be fewer
        ]

    def _contributions(
        self, start: int, regions: Sequence[Region], groups: Iterator[list[memoryview]]
    ) -> Iterator[Contribution]:
        count = len(self._readings)
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

    def _part(self, place: int, region: Region, start: int, data: memoryview) -> UpdatePart:
        """The part of an update in a region, given its bytes for a range from ``start`` on."""
        reading = self._readings[place]
        old = self._others.get(id(reading.update.base), self.old)
        offset = reading.place(region.start) - reading.place(start)
        data = data[offset : offset + region.stop - region.start]
        if reading.may_be_unchanged and not region.body:
            # Which one range disproves, where a site has trained.
            reading.compare(data, old.of(region))
        scale = 1.0 if region.body else self._scales[place]
        return UpdatePart(place, reading.update, region, data, old, scale, self._checked)
