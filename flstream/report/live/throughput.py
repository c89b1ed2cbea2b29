"""How much came of something over the last moments."""

from __future__ import annotations

from collections import deque

# Long enough to even out single requests, short enough to follow a change of pace.
_RATE_SECONDS = 2.0
# What is noted within so short a time counts as one, so that a storm of notes costs no memory.
_BUCKET_SECONDS = 0.1
# A rate over less time than this would be that of a burst.
_LEAST_SECONDS = 0.5


class Throughput:
    """What came of something over the last moments: bytes, or answers.

    Attributes:
        total: of all there was.
    """

    def __init__(self) -> None:
        self._moved: deque[tuple[float, int]] = deque()
        self._since = 0.0
        self.total = 0

    def add(self, time: float, count: int) -> None:
        """Note that ``count`` more had come by ``time``."""
        if not count:
            return
        self.total += count
        self._forget(time)
        if not self._moved:
            self._since = time
        elif time - self._moved[-1][0] < _BUCKET_SECONDS:
            first, before = self._moved.pop()
            self._moved.append((first, before + count))
            return
        self._moved.append((time, count))

    def settle(self, time: float, total: int) -> None:
        """It is known for certain now how much there was in all."""
        self.add(time, max(total - self.total, 0))
        self.total = total

    def per_second(self, now: float) -> float:
        """How much came a second up to ``now``."""
        self._forget(now)
        seconds = min(max(now - self._since, _LEAST_SECONDS), _RATE_SECONDS)
        return sum(count for _, count in self._moved) / seconds

    def _forget(self, now: float) -> None:
        while self._moved and self._moved[0][0] < now - _RATE_SECONDS:
            self._moved.popleft()
