"""A cohort: the updates of one walk, opened, and read side by side range by range."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, cycle
from typing import NamedTuple

import numpy as np

from flstream.aggregation.ahead import read_ahead
from flstream.aggregation.elements import FLOATS, block_room, blocks, unit
from flstream.aggregation.parts import Part
from flstream.aggregation.rules import Rule
from flstream.aggregation.steps import GROUPS_READ, RANGES_TOGETHER, Steps
from flstream.aggregation.updates import Range, Reading, Update, join
from flstream.aggregation.zones import Zone, Zones
from flstream.errors import UpdateRefusedError
from flstream.model.body import Scratch, Source
from flstream.model.dtypes import BY_CODE
from flstream.model.layout import Layout

# Below this, handing work to a thread costs more than it saves.
_WORTH_A_THREAD = 8 << 20


GroupScratch = Sequence[tuple[Scratch, Scratch]]
"""Where the ranges of a group are read into."""


class Contribution(NamedTuple):
    """What the updates that are read together have for one zone of a range.

    Attributes:
        zone: the zone's place in the range.
        parts: of those of them that have it, one at least.
        are_last: their bytes are good until the next range is begun; those of others, until the
            next contribution is asked for.
    """

    zone: int
    parts: Sequence[Part]
    are_last: bool


class OldValues:
    """The model that the updates started from, each range of which is read once at most."""

    def __init__(self, base: Source) -> None:
        self._base = base
        self._scratch, self._joined = Scratch(), Scratch()
        self._range = (0, 0)
        self._is_read = False
        self._data = memoryview(b"")

    def begin(self, start: int, stop: int) -> None:
        """A new range begins."""
        self._range = (start, stop)
        self._is_read = False

    def of(self, zone: Zone) -> memoryview:
        """The model's bytes for a zone of the range."""
        start, stop = self._range
        if not self._is_read:
            self._data = join(self._base.views(start, stop, self._scratch), self._joined)
            self._is_read = True
        return self._data[zone.start - start : zone.stop - start]


class Cohort:
    """Updates that are read together.

    Args:
        base: the model that the sites started from.
        updates: in the order in which they are to be folded.
        rule: which tensors count, and whether what is not finite is refused.
        steps: of the walk.
        scales: what each update's difference from the model is multiplied by.
        before: for each tensor the weight summed earlier; none by default.
        looking: look at every number that was sent. A mean need not: its result tells whether
            there is one that is not finite, and only then are the updates read again, looking.

    Attributes:
        zones: where which of them have what.
        old: the model, for whoever needs it.

    Raises:
        UpdateRefusedError: an update does not fit the model.
    """

    def __init__(
        self,
        base: Source,
        updates: Sequence[Update],
        rule: Rule,
        steps: Steps,
        *,
        scales: Sequence[float] | None = None,
        before: Sequence[float] | None = None,
        looking: bool = False,
    ) -> None:
        layout = self._layout = base.layout
        self._readings = [Reading(update, layout, steps.frame) for update in updates]
        self._scales = scales or [1.0] * len(updates)
        self._looking = looking and rule.on_nonfinite == "reject"
        self._group_scratches = [
            [(Scratch(), Scratch()) for _ in range(RANGES_TOGETHER)] for _ in range(GROUPS_READ)
        ]
        self._room = block_room({spec.dtype for spec in layout.tensors}, steps.step)
        self._ahead: Iterator[list[Range]] | None = None
        self.old = OldValues(base)
        self.zones = Zones(
            layout,
            rule.selected(layout),
            [each.carried.by_name if each.update.partial else None for each in self._readings],
            before or [0.0] * len(layout.tensors),
        )

    def begin(self, start: int, stop: int) -> list[Zone]:
        """A new range begins; return its zones."""
        self.old.begin(start, stop)
        return self.zones.cut(start, stop)

    @contextmanager
    def reading_ahead(self, step: int) -> Iterator[None]:
        """Read updates' ranges while those before them are folded, as long as the block lasts.

        Args:
            step: bytes of a range; :meth:`parts` is to be asked for all of them, in order.
        """
        if self._layout.nbytes * len(self._readings) < _WORTH_A_THREAD:
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
        """The places of updates whose ranges are read and folded together."""
        count = len(self._readings)
        for first in range(0, count, RANGES_TOGETHER):
            yield range(first, min(first + RANGES_TOGETHER, count))

    def _read(self, group: range, start: int, stop: int, scratch: GroupScratch) -> list[Range]:
        return [
            self._readings[place].read(start, stop, *pair)
            for place, pair in zip(group, scratch, strict=False)  # the last group may be smaller
        ]

    def parts(self, start: int, stop: int, zones: Sequence[Zone]) -> Iterator[Contribution]:
        """Read the range of every update, in order, and give what they have for each of its zones.

        Raises:
            UpdateRefusedError: while looking, something that is not finite was found.
        """
        for group in self._groups:
            if self._ahead is not None:
                ranges = next(self._ahead)
            else:
                ranges = self._read(group, start, stop, self._group_scratches[0])
            are_last = group.stop == len(self._readings)
            for index, zone in enumerate(zones):
                parts = [
                    self._part(place, zone, read)
                    for place, read in zip(group, ranges, strict=True)
                    if zone.carried_by(place)
                ]
                if parts:
                    yield Contribution(index, parts, are_last)

    def each_part(self, start: int, stop: int, zones: Sequence[Zone]) -> Iterator[Part]:
        """The parts alone: see :meth:`parts`."""
        return chain.from_iterable(each.parts for each in self.parts(start, stop, zones))

    def _part(self, place: int, zone: Zone, read: Range) -> Part:
        update = read.reading.update
        return Part(
            place,
            update,
            zone,
            read.data(zone.start, zone.stop),
            self.old.of,
            self._scales[place],
            partial(self._refuse, update.site) if self._looking else None,
            self._room,
        )

    def _refuse(self, site: str, zone: Zone, index: int, value: float) -> None:
        where = element_at(self._layout, zone, index)
        raise UpdateRefusedError(
            site,
            f"is not finite: {where} is {value}; lower the learning rate, or allow it with "
            "aggregation.on_nonfinite = allow",
        )


def find_not_finite(
    base: Source,
    updates: Sequence[Update],
    rule: Rule,
    steps: Steps,
    folded: int,
    on_range: Callable[[int], None],
) -> None:
    """Read updates again, to the range after byte ``folded``, and look at every number.

    It calls ``on_range(folded)`` after each range, as no more is folded.

    Raises:
        UpdateRefusedError: an update has an infinity or a NaN there.
    """
    cohort = Cohort(base, updates, rule, steps, looking=True)
    room = block_room(FLOATS, steps.step)
    for start, stop in base.layout.ranges(steps.step):
        if start > folded:
            return
        for part in cohort.each_part(start, stop, cohort.begin(start, stop)):
            if part.zone.dtype in FLOATS:
                for block in blocks(part.zone.numbers):
                    part.sent(block, room[: block.stop - block.start])
        on_range(folded)


def element_at(layout: Layout, zone: Zone, index: int) -> str:
    """Name an element of a zone: its tensor, and its place in that."""
    offset = zone.start + index * unit(zone.dtype)
    spec = next(layout.overlapping(offset, offset + 1))
    element = (offset - spec.start) // BY_CODE[spec.dtype].itemsize
    place = [int(each) for each in np.unravel_index(element, spec.shape)]
    return f"tensor {spec.name!r} at {place}" if place else f"tensor {spec.name!r}"
