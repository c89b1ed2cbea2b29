"""Weighted mean of updates (FedAvg: McMahan et al. 2017, arXiv:1602.05629)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from flstream.aggregation.elements import BLOCK, Array, blocks
from flstream.aggregation.regions import Region
from flstream.aggregation.update_set import UpdatePart

if TYPE_CHECKING:
    from flstream.aggregation.methods import Combination


def mean(updates: int) -> Combination:
    """Make the mean."""
    return WeightedMean(), None


class WeightedMean:
    """The weighted mean of updates, computed in float64 for every element type.

    A product and a sum are two roundings to float64 here and never one fused step, which a compiler
    may or may not choose at the end of a vector. So an element's result does not depend on its
    place in a range, nor on how the body was cut. Floats are rounded once, at the end, and integers
    half to even. A bool is true where updates of more than half the weight are.

    The last updates are not summed before the results are requested. So with two updates, no sum of
    more than a block is ever in memory.

    Attributes:
        sums: For each region of the range, the float64 sum of the values times the weights of all
            updates but the last ones.
    """

    def __init__(self) -> None:
        self._regions: Sequence[Region] = ()
        self._weights: list[float] = []
        self._summed: list[bool] = []
        self._last: list[Sequence[UpdatePart]] = []
        self._sums_buffer = np.empty(0)
        self._values = self._mean = np.empty(0)
        self.sums: list[Array] = []

    def begin(self, regions: Sequence[Region]) -> None:
        """Begin a range; sums of regions with a weight are for the caller to fill in."""
        self._regions = regions
        self._weights = [region.before for region in regions]
        self._summed = [bool(region.before) for region in regions]
        self._last = [()] * len(regions)
        numbers = [region.numbers for region in regions]
        longest = min(max(numbers), BLOCK)
        if len(self._mean) < longest:
            self._values, self._mean = np.empty(longest), np.empty(longest)
        if len(self._sums_buffer) < sum(numbers):
            self._sums_buffer = np.empty(sum(numbers))
        starts = accumulate(numbers, initial=0)
        self.sums = [self._sums_buffer[at : at + n] for at, n in zip(starts, numbers, strict=False)]

    def add(self, index: int, parts: Sequence[UpdatePart], *, are_last: bool) -> None:
        """Add the parts of further updates for a region."""
        region = self._regions[index]
        for part in parts:  # one by one, so that the grouping does not change the bits
            self._weights[index] += part.weight
        if are_last:
            self._last[index] = parts
            return
        for block in blocks(region.numbers):
            self._sum(index, parts, block, self.sums[index][block])
        self._summed[index] = True

    def result(self, index: int, block: slice) -> Array:
        """Return the mean of a region's block, until the next call overwrites the array.

        Under a rule of the workflow's that does not normalise, that is the sum.
        """
        region, weight = self._regions[index], self._weights[index]
        if region.fold_rule is not None and not region.fold_rule.normalise:
            weight = 1.0
        mean = self._mean[: block.stop - block.start]
        total = self._sum(index, self._last[index], block, mean)
        if _is_power_of_two(weight):
            np.multiply(total, 1 / weight, out=mean)  # the same bits in a third of the time
        else:
            np.divide(total, weight, out=mean)
        return mean

    def _sum(self, index: int, parts: Sequence[UpdatePart], block: slice, out: Array) -> Array:
        """Return the sum of a block with the last updates: ``out``, unless there are none."""
        total = self.sums[index][block] if self._summed[index] else None
        for part in parts:
            values = out if total is None else self._values[: len(out)]
            part.reals(block, values)
            if part.weight != 1:
                np.multiply(values, part.weight, out=values)
            total = values if total is None else np.add(total, values, out=out)
        assert total is not None, "a region that nobody has anything for is kept"
        return total


def _is_power_of_two(weight: float) -> bool:
    """Return whether a weight's inverse is exact, so that it can replace a division."""
    fraction, exponent = math.frexp(weight)
    return fraction == 0.5 and abs(exponent) < 1000
