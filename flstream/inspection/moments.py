"""Mean and variance of numbers that come block by block."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Beyond these a square, or a sum of squares, would leave the range of float64.
_LARGEST, _SMALLEST = 1e140, 1e-140


class Moments:
    """Count, mean and sum of squared deviations, merged block by block.

    Within a block deviations are from its own mean, in float64, and what rounding left of their sum
    is taken off (the corrected two-pass algorithm); blocks are merged as in Chan, Golub and LeVeque
    1983, "Algorithms for computing the sample variance". So a large mean does not drown a small
    deviation. Blocks whose squares float64 could not hold are reckoned with in long double.

    Attributes:
        count: how many numbers.
        mean: of them; 0 for none.
        squares: sum of squared deviations from the mean.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = np.longdouble(0)
        self.squares = np.longdouble(0)

    def add(self, values: Array, low: float, high: float, shift: int = 0) -> None:
        """Take a block of finite float64 numbers, which is overwritten.

        Args:
            values: one or more.
            low: the least of them.
            high: the greatest.
            shift: an integer to be added to each: beyond 2^53 float64 has not all of them.
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
        """The standard deviation of the population: divided by the count, not by one less."""
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
