"""A site's part of a zone: the values it would give the model there, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from flstream.aggregation.elements import BLOCK, Array, Elements, blocks, first_not_finite
from flstream.aggregation.updates import ParamsType
from flstream.aggregation.zones import Zone


class Room:
    """Where blocks are worked on, kept for a whole walk."""

    def __init__(self) -> None:
        self.values = np.empty(BLOCK)
        self.old = np.empty(BLOCK)


class Part:
    """What one update has for one zone of a range.

    Args:
        zone: where.
        data: the bytes sent.
        params_type: whether they are new values or differences from the old ones.
        old: gives the model's bytes for a zone; asked only where they are needed.
        scale: what the difference from the old values is multiplied by.
        not_finite: called with the zone and the index and the value of the first number that is
            infinite or not a number; None where nobody is to look.
        room: for the blocks.
    """

    def __init__(
        self,
        zone: Zone,
        data: memoryview,
        params_type: ParamsType,
        old: Callable[[Zone], memoryview],
        scale: float,
        not_finite: Callable[[Zone, int, float], None] | None,
        room: Room,
    ) -> None:
        self.zone = zone
        self._sent = Elements(zone.dtype, data)
        self._is_difference = params_type == "DIFF"
        self._old = old
        self._scale = scale
        self._not_finite = not_finite
        self._room = room

    def integers(self) -> Array:
        """The new values of a zone of integers. They wrap, as differences of them do."""
        sent = self._sent.native()
        if not self._is_difference:
            return sent
        whole: Array = self._old_values().native() + sent
        return whole

    def reals(self, into: Array | None = None) -> Iterator[tuple[slice, Array]]:
        """The new values, block by block, in an array that may be changed and is used again.

        Args:
            into: an array for all of them, for blocks that are not to be used again.
        """
        if self.zone.dtype == "BOOL":
            yield from self._bools(into)
        elif not self._is_difference and self._scale == 1:
            yield from self.sent(into)
        else:
            old_values = self._old_values()
            for part, block in self.differences(into):
                if self._scale != 1:
                    np.multiply(block, self._scale, out=block)
                old = self._room.old[: len(block)]
                old_values.load(part, old)
                np.add(block, old, out=block)
                yield part, block

    def differences(self, into: Array | None = None) -> Iterator[tuple[slice, Array]]:
        """The differences of floats from the old values, before scaling, likewise."""
        if self._is_difference:
            yield from self.sent(into)
            return
        old_values = self._old_values()
        for part, block in self.sent(into):
            old = self._room.old[: len(block)]
            old_values.load(part, old)
            np.subtract(block, old, out=block)
            yield part, block

    def sent(self, into: Array | None = None) -> Iterator[tuple[slice, Array]]:
        """The numbers as they were sent, likewise."""
        for part in blocks(len(self._sent)):
            if into is not None:
                block = into[part]
            else:
                block = self._room.values[: min(BLOCK, len(self._sent) - part.start)]
            self._sent.load(part, block)
            if self._not_finite is not None:
                index = first_not_finite(block, part.start)
                if index is not None:
                    self._not_finite(self.zone, index, float(block[index - part.start]))
            yield part, block

    def _bools(self, into: Array | None) -> Iterator[tuple[slice, Array]]:
        # A difference of bools says which ones to flip; there is nothing to scale.
        old = self._old_values().native() if self._is_difference else None
        for part, block in self.sent(into):
            if old is not None:
                np.not_equal(block, old[part], out=block)
            yield part, block

    def _old_values(self) -> Elements:
        return Elements(self.zone.dtype, self._old(self.zone))
