"""What the walk asks of a rule that makes the next model out of updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flstream.aggregation.elements import Array
from flstream.aggregation.parts import Part
from flstream.aggregation.zones import Zone


class Fold(Protocol):
    """A way to make the next model out of updates, one range at a time."""

    def begin(self, zones: Sequence[Zone]) -> None:
        """A new range begins, which consists of these zones."""
        ...

    def add(self, index: int, parts: Sequence[Part], *, are_last: bool) -> None:
        """Take what the next updates have for the zone at ``index``.

        Updates come in the cohort's order, and all that a zone's ``carriers`` name do come.

        Args:
            index: of the zone.
            parts: one or more.
            are_last: their bytes are there until all results have been asked for; those of others
                are gone afterwards.
        """
        ...

    def result(self, index: int, block: slice) -> Array:
        """The new values of a block of a zone, asked for once.

        Returns:
            Float64, which may be changed; or integers of the zone's own type, for a zone of those.
        """
        ...
