"""Throughput of bytes or answers over the last seconds."""

from __future__ import annotations

from collections import deque

# Length of the window: long enough to average single requests, short enough to follow changes.
_RATE_SECONDS = 2.0
# Amounts within this time are added up, so that the memory is bounded.
_BUCKET_SECONDS = 0.1
# Minimum time for a rate; over less it would be that of a single burst.
_LEAST_SECONDS = 0.5


class Throughput:
    """Throughput of bytes or answers over the last seconds.

    Attributes:
        total: total amount so far.
    """

    def __init__(self) -> None:
        self._moved: deque[tuple[float, int]] = deque()
        self._since = 0.0
        self.total = 0

    def add(self, time: float, count: int) -> None:
        """Add an amount.

        Args:
            time: time of its arrival in seconds since the epoch.
            count: bytes or answers since the last call.
        """
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
        """Correct the total.

        Args:
            time: current time in seconds since the epoch.
            total: exact total amount so far.
        """
        self.add(time, max(total - self.total, 0))
        self.total = total

    def per_second(self, now: float) -> float:
        """Return the rate a second over the last seconds before ``now``."""
        self._forget(now)
        seconds = min(max(now - self._since, _LEAST_SECONDS), _RATE_SECONDS)
        return sum(count for _, count in self._moved) / seconds

    def _forget(self, now: float) -> None:
        while self._moved and self._moved[0][0] < now - _RATE_SECONDS:
            self._moved.popleft()
