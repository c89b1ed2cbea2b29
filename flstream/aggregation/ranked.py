"""Rules that rank each coordinate's values (Yin et al. 2018, arXiv:1803.01498).

All updates count alike: a weight that a site chooses itself would let it choose the result.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from flstream.aggregation.elements import Array
from flstream.aggregation.methods import Combination, CoordinateFold


def median(updates: int) -> Combination:
    """Make the median: the mean of the one or two values in the middle."""
    return trimmed(updates, 0.5)


def trimmed(updates: int, trim: float) -> Combination:
    """Make the mean without a fraction of the values at each end."""
    return CoordinateFold(partial(trimmed_mean, trim=trim)), None


def trimmed_mean(values: Array, weights: Array, *, trim: float) -> Array:
    """Average each coordinate's values without the smallest and the largest.

    All are ranked and averaged in float64, and rounded once; integers half to even. The parts of
    complex numbers are ranked separately. A bool is true where more than half of the values that
    are left are. A NaN, where it is allowed, ranks above all numbers. See
    :data:`flstream.aggregation.methods.Combine`.
    """
    values.sort(axis=0)
    ends = left_out(len(values), trim)
    middle = values[ends : len(values) - ends]
    total: Array = middle[0]
    for row in middle[1:]:
        np.add(total, row, out=total)
    np.divide(total, len(middle), out=total)
    return total


def left_out(count: int, fraction: float) -> int:
    """Return how many values a fraction is at each end, rounded down; not all."""
    # In binary, a fraction such as 0.2 is a little more or less: 5 x 0.2 is meant to be 1.
    return min(math.floor(round(count * fraction, 9)), (count - 1) // 2)
