"""Rules that rank the values of each coordinate (Yin et al. 2018, arXiv:1803.01498).

All updates count alike: a weight that a site chooses itself would let it choose the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from flstream.aggregation.elements import INTEGERS, Array, blocks
from flstream.aggregation.integers import difference, shift
from flstream.aggregation.regions import Region
from flstream.aggregation.update_part import UpdatePart
from flstream.model.dtypes import BY_CODE

Trim = Callable[[int], int]
"""Function from the number of values to how many of them are left out at each end."""


def median_trim(count: int) -> int:
    """Return the trim of the median, the mean of the one or two values in the middle."""
    return (count - 1) // 2


def fraction_trim(fraction: float) -> Trim:
    """Return the trim of a fraction of the values at each end, below 0.5 and rounded down."""

    def trim(count: int) -> int:
        # In binary, a fraction such as 0.2 is a little more or less: 5 x 0.2 is meant to be 1.
        return min(math.floor(round(count * fraction, 9)), median_trim(count))

    return trim


class TrimmedMean:
    """The mean of each coordinate's values without the smallest and the largest.

    It holds a range of all updates at once. Floats are ranked and averaged in float64 and rounded
    once; the parts of complex numbers are ranked separately. Integers are ranked exactly, and
    averaged as by :class:`flstream.aggregation.mean.WeightedMean`. A bool is true where more than
    half of the values that are left are. A NaN, where it is allowed, ranks above all numbers.

    Args:
        trim: Number of values to leave out at each end, given the number of values.
    """

    def __init__(self, trim: Trim) -> None:
        self._trim = trim
        self._values: list[Array] = []
        self._filled: list[int] = []
        self._buffer = bytearray()

    def begin(self, regions: Sequence[Region]) -> None:
        """Begin a range."""
        counts = [region.carriers.bit_count() for region in regions]
        types = [_value_type(region) for region in regions]
        sizes = [
            -(-count * region.numbers * each.itemsize // 8) * 8
            for count, region, each in zip(counts, regions, types, strict=True)
        ]
        if len(self._buffer) < sum(sizes):
            self._buffer = bytearray(sum(sizes))
        self._values, self._filled, offset = [], [0] * len(regions), 0
        for count, region, each, size in zip(counts, regions, types, sizes, strict=True):
            flat = np.frombuffer(self._buffer, each, count * region.numbers, offset)
            self._values.append(flat.reshape(count, region.numbers))
            offset += size

    def add(self, index: int, parts: Sequence[UpdatePart], *, are_last: bool) -> None:
        """Add the parts of further updates for a region."""
        values = self._values[index]
        for part in parts:
            row = values[self._filled[index]]
            if part.region.dtype in INTEGERS:
                row[:] = part.integers()
            else:
                for block in blocks(len(row)):
                    part.reals(block, row[block])
            self._filled[index] += 1
        if self._filled[index] == len(values):
            values.sort(axis=0)

    def result(self, index: int, block: slice) -> Array:
        """Return the trimmed mean of a block of a region."""
        ranked = self._values[index][:, block]
        trim = self._trim(len(ranked))
        left = ranked[trim : len(ranked) - trim]
        first = left[0]
        if ranked.dtype == np.float64:
            total: Array = first
            for values in left[1:]:
                np.add(total, values, out=total)
            np.divide(total, len(left), out=total)
            return total
        steps = np.zeros(first.shape)
        for values in left[1:]:
            np.add(steps, difference(values, first), out=steps)
        return shift(first, np.divide(steps, len(left), out=steps))


def _value_type(region: Region) -> np.dtype[np.generic]:
    if region.dtype in INTEGERS:
        return np.dtype(BY_CODE[region.dtype].numpy_name)
    return np.dtype(np.float64)
