"""Rules that rank each coordinate's values (Yin et al. 2018, arXiv:1803.01498).

All updates count alike: a weight that a site chooses itself would let it choose the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from flstream.aggregation.elements import Array
from flstream.aggregation.methods import Combination, CoordinateFold

Trim = Callable[[int], int]
"""Function from the number of values to how many of them are left out at each end."""


def median(updates: int) -> Combination:
    """Make the median."""
    return CoordinateFold(partial(trimmed_mean, trim=median_trim)), None


def trimmed(updates: int, trim: float) -> Combination:
    """Make the mean without a fraction of the values at each end."""
    return CoordinateFold(partial(trimmed_mean, trim=fraction_trim(trim))), None


def median_trim(count: int) -> int:
    """Return the trim of the median, the mean of the one or two values in the middle."""
    return (count - 1) // 2


def fraction_trim(fraction: float) -> Trim:
    """Return the trim of a fraction below 0.5 at each end, rounded down."""

    def trim(count: int) -> int:
        # In binary, a fraction such as 0.2 is a little more or less: 5 x 0.2 is meant to be 1.
        return min(math.floor(round(count * fraction, 9)), median_trim(count))

    return trim


def trimmed_mean(values: Array, weights: Array, *, trim: Trim) -> Array:
    """Average each coordinate's values without the smallest and the largest.

    All are ranked and averaged in float64, and rounded once; integers half to even. The parts of
    complex numbers are ranked separately. A bool is true where more than half of the values that
    are left are. A NaN, where it is allowed, ranks above all numbers. See
    :data:`flstream.aggregation.methods.Combine`.
    """
    values.sort(axis=0)
    left_out = trim(len(values))
    middle = values[left_out : len(values) - left_out]
    total: Array = middle[0]
    for row in middle[1:]:
        np.add(total, row, out=total)
    np.divide(total, len(middle), out=total)
    return total
