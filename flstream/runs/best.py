"""The best round of a run: the first whose model scored best on the key metric."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from flstream.telemetry.events import Metrics

Mode = Literal["max", "min"]


class BestEvaluation(NamedTuple):
    """The best evaluation so far.

    Attributes:
        round: Round whose model was evaluated.
        value: Value of the key metric; finite.
    """

    round: int
    value: float


class BestRound:
    """Finder of the round with the best model by one metric, the first of equals.

    A round that is evaluated again counts with its last evaluation.

    Args:
        metric: Name of the metric.
        mode: Whether its best value is the largest or the smallest.

    Attributes:
        best: Best evaluation; None until a round has a finite value.
    """

    def __init__(self, metric: str, mode: Mode) -> None:
        self.metric = metric
        self.best: BestEvaluation | None = None
        self._before: BestEvaluation | None = None  # of the rounds before the last one
        self._round: int | None = None
        self._sign = 1 if mode == "max" else -1

    def compare(self, round_number: int, metrics: Metrics) -> bool:
        """Compare a round's metrics; return whether it beats all rounds before."""
        if round_number != self._round:
            self._before, self._round = self.best, round_number
        value, self.best = finite_value(metrics, self.metric), self._before
        if value is None:
            return False
        if self._before is not None and self._sign * value <= self._sign * self._before.value:
            return False
        self.best = BestEvaluation(round_number, value)
        return True


def finite_value(metrics: Metrics, name: str) -> float | None:
    """Return the value of a metric; None where it is missing, NaN or infinite."""
    value = metrics.get(name)
    return value if value is not None and math.isfinite(value) else None
