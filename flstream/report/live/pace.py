"""How long rounds take, and what that says of the time left."""

from __future__ import annotations

from collections import deque

# The time left follows the last rounds: sites, evaluations and the machine's load change.
_ROUNDS = 8


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
