"""How fast a run goes: throughput over the last moments, and what that says of the time left."""

from __future__ import annotations

from collections import deque

# Long enough to even out single requests, short enough to follow a change of pace.
_RATE_SECONDS = 2.0
# What is noted within so short a time counts as one, so that a storm of notes costs no memory.
_BUCKET_SECONDS = 0.1
# A rate over less time than this would be that of a burst.
_LEAST_SECONDS = 0.5
# The time left follows the last rounds: sites, evaluations and the machine's load change.
_ROUNDS = 8


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


class Pace:
    """How long rounds take, their evaluation included."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._seconds: deque[float] = deque(maxlen=_ROUNDS)
        self._is_first = True

    def begin_round(self, time: float) -> None:
        """A round begins, and so the one before is over."""
        if self._began is not None:
            # The first one warms everything up. It counts only as long as there is no other.
            if len(self._seconds) == 1 and self._is_first:
                self._seconds.clear()
                self._is_first = False
            self._seconds.append(max(time - self._began, 0.0))
        self._began = time

    @property
    def seconds_a_round(self) -> float | None:
        """What a round takes; None before one is over."""
        return sum(self._seconds) / len(self._seconds) if self._seconds else None

    def seconds_left(self, rounds_after: int, now: float) -> float | None:
        """About how long it is until the end; None before a round is over.

        Args:
            rounds_after: how many rounds come after the one that is under way.
            now: in seconds since the epoch.
        """
        each = self.seconds_a_round
        if each is None or self._began is None:
            return None
        return max(each - (now - self._began), 0.0) + rounds_after * each


def seconds_left_of(done: float, seconds: float) -> float | None:
    """About how long the rest of something takes.

    Args:
        done: which part of it is done, from 0 to 1.
        seconds: that this took.

    Returns:
        None if there is too little to go by.
    """
    if done < 0.05 or seconds < 1.0:
        return None
    return seconds * (1 - min(done, 1.0)) / done
