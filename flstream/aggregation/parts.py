"""A site's part of a zone: the values it would give the model there, in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flstream.aggregation.elements import Array, Elements, first_not_finite
from flstream.aggregation.updates import Update
from flstream.aggregation.zones import Zone


class Part:
    """What one update has for one zone of a range.

    Args:
        place: of the update, in the cohort.
        update: whose; says its weight, and whether it sends differences.
        zone: where.
        data: the bytes sent.
        old: gives the model's bytes for a zone; asked only where they are needed.
        scale: what the difference from the old values is multiplied by.
        not_finite: called with the zone and the index and the value of the first number that is
            infinite or not a number; None where nobody is to look.
        room: for a block of old values; all parts of a walk may share it.
    """

    def __init__(
        self,
        place: int,
        update: Update,
        zone: Zone,
        data: memoryview,
        old: Callable[[Zone], memoryview],
        scale: float,
        not_finite: Callable[[Zone, int, float], None] | None,
        room: Array,
    ) -> None:
        self.place = place
        self.weight = update.weight
        self.zone = zone
        self._sent = Elements(zone.dtype, data)
        self._is_difference = update.params_type == "DIFF"
        self._old = old
        self._scale = scale
        self._not_finite = not_finite
        self._room = room
        self._old_elements: Elements | None = None

    def integers(self) -> Array:
        """The new values of a zone of integers. They wrap, as differences of them do."""
        sent = self._sent.native()
        if not self._is_difference:
            return sent
        whole: Array = self._old_values().native() + sent
        return whole

    def reals(self, block: slice, out: Array) -> None:
        """Write the new values of a block into an array of its length."""
        if self.zone.dtype == "BOOL":
            self._bools(block, out)
        elif not self._is_difference and self._scale == 1:
            self.sent(block, out)
        else:
            self.differences(block, out)
            if self._scale != 1:
                np.multiply(out, self._scale, out=out)
            np.add(out, self._old_block(block), out=out)

    def differences(self, block: slice, out: Array) -> None:
        """Write the differences of floats from the old values, before scaling, likewise."""
        self.sent(block, out)
        if not self._is_difference:
            np.subtract(out, self._old_block(block), out=out)

    def sent(self, block: slice, out: Array) -> None:
        """Write the numbers as they were sent, likewise."""
        self._sent.load(block, out)
        if self._not_finite is not None:
            index = first_not_finite(out, block.start)
            if index is not None:
                self._not_finite(self.zone, index, float(out[index - block.start]))

    def _bools(self, block: slice, out: Array) -> None:
        self.sent(block, out)
        if self._is_difference:
            # A difference of bools says which ones to flip; there is nothing to scale.
            np.not_equal(out, self._old_values().native()[block], out=out)

    def _old_block(self, block: slice) -> Array:
        old = self._room[: block.stop - block.start]
        self._old_values().load(block, old)
        return old

    def _old_values(self) -> Elements:
        if self._old_elements is None:
            self._old_elements = Elements(self.zone.dtype, self._old(self.zone))
        return self._old_elements
