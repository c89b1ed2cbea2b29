"""Rates of a run: throughput of bytes and answers, duration of rounds, and the time left."""

from __future__ import annotations

from collections import deque

# Length of the window: long enough to average single requests, short enough to follow changes.
_RATE_SECONDS = 2.0
# Amounts within this time are added up, so that the memory is bounded.
_BUCKET_SECONDS = 0.1
# Minimum time for a rate; over less it would be that of a single burst.
_LEAST_SECONDS = 0.5
# Number of last rounds that are averaged, since sites, evaluations and the machine's load change.
_ROUNDS = 8


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


class Pace:
    """Mean duration of the last rounds, evaluation included."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._seconds: deque[float] = deque(maxlen=_ROUNDS)
        self._is_first = True

    def begin_round(self, time: float) -> None:
        """Handle the beginning of a round, which ends the one before.

        Args:
            time: time of the event in seconds since the epoch.
        """
        if self._began is not None:
            # The first round includes warming up, so it counts only until there is another one.
            if len(self._seconds) == 1 and self._is_first:
                self._seconds.clear()
                self._is_first = False
            self._seconds.append(max(time - self._began, 0.0))
        self._began = time

    @property
    def seconds_a_round(self) -> float | None:
        """Mean seconds of a round; None before the first one has ended."""
        return sum(self._seconds) / len(self._seconds) if self._seconds else None

    def seconds_left(self, rounds_after: int, now: float) -> float | None:
        """Predict the seconds until the end of the job; None before the first round has ended.

        Args:
            rounds_after: number of rounds after the current one.
            now: current time in seconds since the epoch.
        """
        each = self.seconds_a_round
        if each is None or self._began is None:
            return None
        return max(each - (now - self._began), 0.0) + rounds_after * each
