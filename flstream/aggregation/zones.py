"""Zones: where in the body the same updates carry the same type of element."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import NamedTuple

from flstream.aggregation.elements import unit
from flstream.model.layout import Layout


class Zone(NamedTuple):
    """A range of the body that is folded in one way.

    Attributes:
        dtype: the one type of its elements.
        start: offset of its first byte in the body.
        stop: offset after its last byte.
        carriers: the updates that have it: bit i for the one at place i of the cohort.
        before: the weight of updates that were summed earlier.
        is_selected: whether it is to be aggregated at all.
    """

    dtype: str
    start: int
    stop: int
    carriers: int
    before: float
    is_selected: bool = True

    @property
    def is_kept(self) -> bool:
        """Whether nobody has anything for it, so that it stays as it is."""
        return not self.carriers and not self.before

    @property
    def numbers(self) -> int:
        """How many there are in it: see :class:`flstream.aggregation.elements.Elements`."""
        return (self.stop - self.start) // unit(self.dtype)

    def carried_by(self, place: int) -> bool:
        """Whether the update at this place of the cohort has it."""
        return bool(self.carriers >> place & 1)


class Zones:
    """The zones of a body, in order.

    Args:
        layout: of the body.
        selected: names of the tensors that are aggregated; the others are kept.
        carried: for each update the names of its tensors, None where it has all.
        before: for each tensor of the layout the weight summed earlier.
    """

    def __init__(
        self,
        layout: Layout,
        selected: Collection[str],
        carried: Sequence[Collection[str] | None],
        before: Sequence[float],
    ) -> None:
        self.all: list[Zone] = []
        # Bits, since sets of a thousand updates would take the memory of a model of many tensors.
        whole = sum(1 << place for place, names in enumerate(carried) if names is None)
        parts = [(1 << place, names) for place, names in enumerate(carried) if names is not None]
        for spec, weight in zip(layout.tensors, before, strict=True):
            if not spec.nbytes:
                continue
            carriers, is_selected = 0, spec.name in selected
            if is_selected:
                carriers = whole | sum(bit for bit, names in parts if spec.name in names)
            zone = Zone(spec.dtype, spec.start, spec.stop, carriers, weight, is_selected)
            last = self.all[-1] if self.all else None
            if last and last[0] == zone[0] and last[3:] == zone[3:]:
                self.all[-1] = last._replace(stop=zone.stop)
            else:
                self.all.append(zone)
        self._starts = [zone.start for zone in self.all]

    def cut(self, start: int, stop: int) -> list[Zone]:
        """The zones in ``[start, stop)``, cut off at its ends."""
        cut = []
        for index in range(bisect_right(self._starts, start) - 1, len(self.all)):
            zone = self.all[index]
            if zone.start >= stop:
                break
            cut.append(zone._replace(start=max(zone.start, start), stop=min(zone.stop, stop)))
        return cut
