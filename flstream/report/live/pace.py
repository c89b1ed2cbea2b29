"""Duration of rounds, and the prediction of the time left."""

from __future__ import annotations

from collections import deque

# Number of last rounds that are averaged, since sites, evaluations and the machine's load change.
_ROUNDS = 8


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
