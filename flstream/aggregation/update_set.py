"""The updates of one walk, opened, and read side by side range by range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain, cycle
from typing import NamedTuple

import numpy as np

from flstream.aggregation.ahead import read_ahead
from flstream.aggregation.elements import block_room, unit
from flstream.aggregation.regions import Region, Regions, UpdatePart
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.steps import GROUPS_READ, RANGES_TOGETHER, Steps
from flstream.aggregation.update import Range, Reading, UpdateSource, join
from flstream.errors import UpdateRefusedError
from flstream.model.dtypes import BY_CODE
from flstream.model.layout import Layout, TypeRun
from flstream.model.source import Scratch, Source, views_of

# Least bytes of all updates for which handing work to a thread saves more than it costs.
_LEAST_READ_AHEAD_BYTES = 8 << 20
# Updates that are opened at the same time.
_MOST_OPENED = 8


GroupScratch = Sequence[tuple[Scratch, Scratch]]
"""Buffers for the ranges of a group of updates."""


class Contribution(NamedTuple):
    """The parts of the updates that are read together, for one region of a range.

    Attributes:
        region: Index of the region in the range.
        parts: Parts of those updates that have the region, at least one.
        are_last: Whether these are the last parts. Their bytes stay valid until the next range is
        begun; those of others, until the next contribution.
    """

    region: int
    parts: Sequence[UpdatePart]
    are_last: bool


class BaseValues:
    """The model that the updates started from, of which each range is read at most once."""

    def __init__(self, base: Source) -> None:
        self._base = base
        self._scratch, self._joined = Scratch(), Scratch()
        self._range = (0, 0)
        self._is_read = False
        self._data = memoryview(b"")

    def begin(self, start: int, stop: int) -> None:
        """Begin a range."""
        self._range = (start, stop)
        self._is_read = False

    def of(self, region: Region) -> memoryview:
        """Return the model's bytes for a region of the range."""
        start, stop = self._range
        if not self._is_read:
            self._data = join(views_of(self._base, start, stop, self._scratch), self._joined)
            self._is_read = True
        return self._data[region.start - start : region.stop - start]


class UpdateSet:
    """Updates that are read together.

    Args:
        base: Model that the sites started from.
        updates: Updates in the order in which they are to be folded.
        rule: Rule that selects the tensors, and says whether numbers must be finite.
        steps: Ranges of the walk.
        scales: Factors of each update's difference from the model; None for none.
        before: For each tensor the weight summed earlier; zeros by default.
        checks_finite: Whether every number is checked to be finite. A mean need not: its result
            shows
        whether a number is not, and only then are the updates read again and checked.

    Attributes:
        regions: Regions of the body, with the updates that have them.
        old: Values of the model.

    Raises:
        UpdateRefusedError: An update does not fit the model.
    """

    def __init__(
        self,
        base: Source,
        updates: Sequence[UpdateSource],
        rule: AggregationRule,
        steps: Steps,
        *,
        scales: Sequence[float] | None = None,
        before: Sequence[float] | None = None,
        checks_finite: bool = False,
    ) -> None:
        layout = self._layout = base.layout
        self._readings = _opened(updates, layout, steps.frame)
        self._scales = scales or [1.0] * len(updates)
        self._checks_finite = checks_finite and rule.on_nonfinite == "reject"
        self._group_scratches = [
            [(Scratch(), Scratch()) for _ in range(RANGES_TOGETHER)] for _ in range(GROUPS_READ)
        ]
        self._room = block_room({spec.dtype for spec in layout.tensors}, steps.step)
        self._ahead: Iterator[list[Range]] | None = None
        self.old = BaseValues(base)
        self.regions = Regions(
            layout,
            rule,
            [each.carried.by_name if each.update.partial else None for each in self._readings],
            before or [0.0] * len(layout.tensors),
        )

    def begin(self, start: int, stop: int) -> list[Region]:
        """Begin a range, and return its regions."""
        self.old.begin(start, stop)
        return self.regions.cut(start, stop)

    @contextmanager
    def reading_ahead(self, step: int) -> Iterator[None]:
        """Read updates' ranges while those before them are folded, as long as the block lasts.

        Args:
            step: Bytes of a range; :meth:`parts` is to be called for all ranges, in order.
        """
        if self._layout.nbytes * len(self._readings) < _LEAST_READ_AHEAD_BYTES:
            yield
            return
        scratches = cycle(self._group_scratches)
        reads = (
            partial(self._read, group, start, stop, next(scratches))
            for start, stop in self._layout.ranges(step)
            for group in self._groups
        )
        with read_ahead(reads, GROUPS_READ - 1) as self._ahead:
            try:
                yield
            finally:
                self._ahead = None

    @property
    def _groups(self) -> Iterator[range]:
        """Return the groups of places of updates whose ranges are read and folded together."""
        count = len(self._readings)
        for first in range(0, count, RANGES_TOGETHER):
            yield range(first, min(first + RANGES_TOGETHER, count))

    def _read(self, group: range, start: int, stop: int, scratch: GroupScratch) -> list[Range]:
        return [
            self._readings[place].read(start, stop, *pair)
            for place, pair in zip(group, scratch, strict=False)  # the last group may be smaller
        ]

    def parts(self, start: int, stop: int, regions: Sequence[Region]) -> Iterator[Contribution]:
        """Read the range of every update, in order, and yield their parts for each region.

        Raises:
            UpdateRefusedError: The numbers are checked, and one of them is not finite.
        """
        for group in self._groups:
            if self._ahead is not None:
                ranges = next(self._ahead)
            else:
                ranges = self._read(group, start, stop, self._group_scratches[0])
            are_last = group.stop == len(self._readings)
            for index, region in enumerate(regions):
                parts = [
                    self._part(place, region, read)
                    for place, read in zip(group, ranges, strict=True)
                    if region.carried_by(place)
                ]
                if parts:
                    yield Contribution(index, parts, are_last)

    def each_part(self, start: int, stop: int, regions: Sequence[Region]) -> Iterator[UpdatePart]:
        """Yield the single parts: see :meth:`parts`."""
        return chain.from_iterable(each.parts for each in self.parts(start, stop, regions))

    def _part(self, place: int, region: Region, read: Range) -> UpdatePart:
        update, data = read.reading.update, read.data(region.start, region.stop)
        if read.reading.may_be_unchanged and not region.body:
            # Which one range disproves, where a site has trained.
            read.reading.compare(data, self.old.of(region))
        return UpdatePart(
            place,
            update,
            region,
            data,
            self.old.of,
            1.0 if region.body else self._scales[place],
            partial(self._refuse, update.site) if self._checks_finite else None,
            self._room,
        )

    def _refuse(self, site: str, region: Region, index: int, value: float) -> None:
        raise not_finite(site, self._layout, region, index, value)


def _opened(updates: Sequence[UpdateSource], layout: Layout, frame: int) -> list[Reading]:
    """Open updates; at once, as far as these are large: each is compared with the model first."""
    if layout.nbytes * len(updates) < _LEAST_READ_AHEAD_BYTES:
        return [Reading(update, layout, frame) for update in updates]
    with ThreadPoolExecutor(_MOST_OPENED, "opening") as threads:
        return list(threads.map(lambda update: Reading(update, layout, frame), updates))


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
