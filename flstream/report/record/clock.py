"""Time for which a run has been going on, whatever lay between its sittings."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class Sitting(NamedTuple):
    """A stretch in which the run was going on: from its begin or a resume to its end.

    Attributes:
        begin: in seconds since the epoch.
        end: the same.
        start: seconds that the run had been going on before.
    """

    begin: float
    end: float
    start: float


class Clock:
    """Time for which a run has been going on: hours between its sittings do not count.

    Args:
        sittings: begin and end of each as far as its events tell, in seconds since the epoch.
    """

    def __init__(self, sittings: Sequence[tuple[float, float]]) -> None:
        self._known = list(sittings)
        self.sittings: list[Sitting] = []

    def see(self, time: float) -> float:
        """Take the time of a sample, in the order of the file; return the running seconds."""
        index = max(bisect_right(self._known, time, key=lambda known: known[0]) - 1, 0)
        while len(self.sittings) <= index:
            self._open(time if index == len(self.sittings) else None)
        last = self.sittings[-1]
        if time > last.end:
            self.sittings[-1] = last = last._replace(end=time)
        return last.start + max(time - last.begin, 0.0)

    def close(self) -> None:
        """Take what events tell of sittings that have no sample."""
        while len(self.sittings) < len(self._known):
            self._open(None)

    def running(self, time: float) -> float:
        """Running seconds at a time since the epoch."""
        index = max(bisect_right(self.sittings, time, key=lambda sitting: sitting.begin) - 1, 0)
        if not self.sittings:
            return 0.0
        sitting = self.sittings[index]
        return sitting.start + (min(max(time, sitting.begin), sitting.end) - sitting.begin)

    @property
    def seconds(self) -> float:
        """For which the run has been going on, all in all."""
        if not self.sittings:
            return 0.0
        last = self.sittings[-1]
        return last.start + (last.end - last.begin)

    def _open(self, time: float | None) -> None:
        number = len(self.sittings)
        begin, end = self._known[number] if number < len(self._known) else (time, time)
        assert begin is not None
        assert end is not None
        # The sampler is there before the first process can say anything.
        begin = begin if time is None else min(begin, time)
        self.sittings.append(Sitting(begin, max(begin, end), self.seconds))
