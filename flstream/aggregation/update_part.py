"""The part of an update in a region: its values for the model there, in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flstream.aggregation.elements import Array, Elements, first_not_finite
from flstream.aggregation.regions import Region
from flstream.aggregation.update import UpdateSource


class UpdatePart:
    """The part of one update in one region of a range.

    Args:
        place: Index of the update in the cohort.
        update: Update, with its weight and whether it has differences.
        region: The region.
        data: Bytes of the update for the region.
        old: Returns the model's bytes for a region; called only where they are needed.
        scale: Factor of the difference from the old values.
        not_finite: Called with the region, and with the index and the value of the first number
            that
        is infinite or NaN; None where the numbers are not checked.
        room: Float64 memory for a block of old values, which all parts of a walk may share.
    """

    def __init__(
        self,
        place: int,
        update: UpdateSource,
        region: Region,
        data: memoryview,
        old: Callable[[Region], memoryview],
        scale: float,
        not_finite: Callable[[Region, int, float], None] | None,
        room: Array,
    ) -> None:
        self.place = place
        self.weight = region.weight_of(update)
        self.region = region
        self._sent = Elements(region.dtype, data)
        self._is_difference = update.params_type == "DIFF"
        if region.body:
            # Whether the params are weights or differences says nothing of other bodies.
            self._is_difference = region.fold_rule is not None and region.fold_rule.base == "zero"
        self._old = old
        self._scale = scale
        self._not_finite = not_finite
        self._room = room
        self._old_elements: Elements | None = None

    def integers(self) -> Array:
        """Return the new values of a region of integers. They wrap, as differences of them do."""
        sent = self._sent.native()
        if not self._is_difference:
            return sent
        whole: Array = self._old_values().native() + sent
        return whole

    def reals(self, block: slice, out: Array) -> None:
        """Write what is summed of a block into a float64 array of its length.

        That is the new values, or, under a rule of the workflow's, the differences that it sums.
        """
        if self.region.dtype == "BOOL":
            self._bools(block, out)
        elif not self._is_difference and self._scale == 1 and self.region.fold_rule is None:
            self.sent(block, out)
        else:
            self.differences(block, out)
            if self._scale != 1:
                np.multiply(out, self._scale, out=out)
            if self.region.fold_rule is None:
                np.add(out, self._old_block(block), out=out)

    def differences(self, block: slice, out: Array) -> None:
        """Write a block's differences from the old values, before scaling, into a float64 array."""
        self.sent(block, out)
        if not self._is_difference:
            np.subtract(out, self._old_block(block), out=out)

    def sent(self, block: slice, out: Array) -> None:
        """Write a block's numbers as they were sent into a float64 array."""
        self._sent.load(block, out)
        if self._not_finite is not None:
            index = first_not_finite(out, block.start)
            if index is not None:
                self._not_finite(self.region, index, float(out[index - block.start]))

    def _bools(self, block: slice, out: Array) -> None:
        self.sent(block, out)
        if self._is_difference:
            # A difference of bools selects those to flip; there is nothing to scale.
            np.not_equal(out, self._old_values().native()[block], out=out)

    def _old_block(self, block: slice) -> Array:
        old = self._room[: block.stop - block.start]
        self._old_values().load(block, old)
        return old

    def _old_values(self) -> Elements:
        if self._old_elements is None:
            self._old_elements = Elements(self.region.dtype, self._old(self.region))
        return self._old_elements
