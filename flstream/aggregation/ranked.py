"""Rules that rank the values of each coordinate (Yin et al. 2018, arXiv:1803.01498).

All updates count alike: a weight that a site chooses itself would let it choose the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from flstream.aggregation.elements import INTEGERS, Array, blocks
from flstream.aggregation.integers import difference, shift
from flstream.aggregation.parts import Part
from flstream.aggregation.zones import Zone
from flstream.model.dtypes import BY_CODE

Trim = Callable[[int], int]
"""How many of so many values are left out at either end."""


def median_trim(count: int) -> int:
    """The median is the mean of the one or two values in the middle."""
    return (count - 1) // 2


def fraction_trim(fraction: float) -> Trim:
    """Leave out this fraction of the values at either end, rounded down; it is below a half."""

    def trim(count: int) -> int:
        # A fraction such as 0.2 is a little more or less than that in binary: 5 x 0.2 is meant
        # to be 1.
        return min(math.floor(round(count * fraction, 9)), median_trim(count))

    return trim


class TrimmedMean:
    """The mean of each coordinate's values without the smallest and the largest.

    It holds a range of all updates at once. Floats are ranked and averaged in float64 and rounded
    once; of complex numbers each part for itself. Integers are ranked as they are, and averaged as
    by :class:`flstream.aggregation.mean.WeightedMean`. A bool is true where more than half of the
    values that are left are. A NaN, where it is allowed, ranks above all numbers.

    Args:
        trim: how many to leave out at either end.
    """

    def __init__(self, trim: Trim) -> None:
        self._trim = trim
        self._values: list[Array] = []
        self._filled: list[int] = []
        self._buffer = bytearray()

    def begin(self, zones: Sequence[Zone]) -> None:
        """A new range begins."""
        counts = [zone.carriers.bit_count() for zone in zones]
        types = [_value_type(zone) for zone in zones]
        sizes = [
            -(-count * zone.numbers * each.itemsize // 8) * 8
            for count, zone, each in zip(counts, zones, types, strict=True)
        ]
        if len(self._buffer) < sum(sizes):
            self._buffer = bytearray(sum(sizes))
        self._values, self._filled, offset = [], [0] * len(zones), 0
        for count, zone, each, size in zip(counts, zones, types, sizes, strict=True):
            flat = np.frombuffer(self._buffer, each, count * zone.numbers, offset)
            self._values.append(flat.reshape(count, zone.numbers))
            offset += size

    def add(self, index: int, parts: Sequence[Part], *, are_last: bool) -> None:
        """Take what the next updates have for a zone."""
        values = self._values[index]
        for part in parts:
            row = values[self._filled[index]]
            if part.zone.dtype in INTEGERS:
                row[:] = part.integers()
            else:
                for block in blocks(len(row)):
                    part.reals(block, row[block])
            self._filled[index] += 1
        if self._filled[index] == len(values):
            values.sort(axis=0)

    def result(self, index: int, block: slice) -> Array:
        """The trimmed mean of a block of a zone."""
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


def _value_type(zone: Zone) -> np.dtype[np.generic]:
    if zone.dtype in INTEGERS:
        return np.dtype(BY_CODE[zone.dtype].numpy_name)
    return np.dtype(np.float64)
