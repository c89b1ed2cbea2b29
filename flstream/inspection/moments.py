"""Mean and variance of numbers, accumulated block by block."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Numbers outside this interval have squares, or sums of squares, outside the range of float64.
_LARGEST, _SMALLEST = 1e140, 1e-140


class Moments:
    """Count, mean and sum of squared deviations, merged block by block.

    Within a block deviations are from its own mean, in float64, and what rounding left of their sum
    is taken off (the corrected two-pass algorithm); blocks are merged as in Chan, Golub and LeVeque
    1983, "Algorithms for computing the sample variance". So a small deviation is not lost beside a
    large mean. Blocks with squares outside the range of float64 are computed in long double.

    Attributes:
        count: number of values.
        mean: mean of the values; 0 without any.
        squares: sum of squared deviations from the mean.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = np.longdouble(0)
        self.squares = np.longdouble(0)

    def add(self, values: Array, low: float, high: float, shift: int = 0) -> None:
        """Add a block of values.

        Args:
            values: one-dimensional array of one or more finite float64 numbers; overwritten.
            low: minimum of the values.
            high: maximum of the values.
            shift: integer to be added to each value, for integers beyond 2^53, not all of which
                are in float64.
        """
        mean, squares = np.longdouble(low), np.longdouble(0)
        if low != high:
            mean, squares = _block(values, max(abs(low), abs(high)))
        self._merge(len(values), mean + np.longdouble(shift), squares)

    def _merge(self, count: int, mean: np.longdouble, squares: np.longdouble) -> None:
        total = self.count + count
        delta = mean - self.mean
        self.squares += squares + delta * delta * (self.count * count / total)
        self.mean += delta * (count / total)
        self.count = total

    @property
    def deviation(self) -> np.longdouble:
        """Standard deviation of the population: divided by the count, not by one less."""
        return np.longdouble(np.sqrt(self.squares / max(self.count, 1)))


def _block(values: Array, largest: float) -> tuple[np.longdouble, np.longdouble]:
    if not _SMALLEST < largest < _LARGEST:
        values = values.astype(np.longdouble)
    count = len(values)
    mean = values.sum() / count
    np.subtract(values, mean, out=values)
    rest = values.sum()
    squares = np.einsum("i,i->", values, values) - rest * rest / count
    return np.longdouble(mean + rest / count), np.longdouble(max(squares, 0))
