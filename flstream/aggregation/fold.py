"""The protocol of a rule that makes the next model of updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flstream.aggregation.elements import Array
from flstream.aggregation.regions import Region
from flstream.aggregation.update_part import UpdatePart


class Fold(Protocol):
    """A way to make the next model of updates, one range at a time."""

    def begin(self, regions: Sequence[Region]) -> None:
        """Begin a range that consists of these regions."""
        ...

    def add(self, index: int, parts: Sequence[UpdatePart], *, are_last: bool) -> None:
        """Add the parts of further updates for a region.

        Updates come in the cohort's order, and every update among a region's ``carriers`` is added.

        Args:
            index: Index of the region in the range.
            parts: One or more parts.
            are_last: Whether these are the last parts. Their bytes stay valid until all results
                have been
            returned; those of others only during this call.
        """
        ...

    def result(self, index: int, block: slice) -> Array:
        """Return the new values of a block of a region; called once for each block.

        Returns:
            Float64, which may be overwritten; or, for a region of integers, their own type.
        """
        ...
