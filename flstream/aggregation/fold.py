"""What the walk asks of a rule that makes the next model out of updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flstream.model.layout import Run


class Fold(Protocol):
    """A way to make the next model out of updates, one range at a time."""

    def begin(self, runs: Sequence[Run]) -> None:
        """A new range begins, with pieces of these element types."""
        ...

    def add(self, data: memoryview, weight: float) -> None:
        """Take the range of the next update. ``data`` may be changed once this returns."""
        ...

    def add_difference(self, data: memoryview, base: memoryview, weight: float) -> None:
        """Take the range of an update that says how it differs from ``base``."""
        ...

    def finish(self, out: memoryview) -> None:
        """Write the range of the next model."""
        ...
