"""The weighted mean of updates, range by range (FedAvg: McMahan et al. 2017, arXiv:1602.05629)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flstream.aggregation.elements import BLOCK, INTEGERS, SMALL_BLOCK, Array, Elements, blocks
from flstream.aggregation.integers import difference, shift
from flstream.aggregation.parts import Part
from flstream.aggregation.zones import Zone


class WeightedMean:
    """The mean of updates, weighted, in float64 whatever the element type.

    A product and a sum are two roundings to float64 here and never one fused step, which a
    compiler may or may not choose at the end of a vector; so an element's result does not depend
    on where in a range it lies, nor on how the body was cut. Floats are rounded once, at the end.
    Integers are averaged as differences from the first update's, which leaves a value all sites
    agree on as it is, at any size; then rounded half to even. A bool is true where updates of
    more than half the weight say so.

    The last updates' floats and bools are not summed before the results are asked for. So of two
    updates no sum is ever in memory for more than a block.

    Attributes:
        sums: of each zone of the range: float64, of the values times the weights of all updates but
            the last. Of integers, of their differences from the first.
        firsts: of each zone of integers the first update's; of others nothing.
    """

    def __init__(self) -> None:
        self._zones: Sequence[Zone] = ()
        self._weights: list[float] = []
        self._summed: list[bool] = []
        self._last: list[Sequence[Part]] = []
        self._sums_buffer = np.empty(0)
        self._firsts_buffer = bytearray()
        self._values = self._mean = np.empty(0)
        self.sums: list[Array] = []
        self.firsts: list[memoryview] = []

    def begin(self, zones: Sequence[Zone]) -> None:
        """A new range begins. Where a zone has a weight already, its sums are to be filled in."""
        self._zones = zones
        self._weights = [zone.before for zone in zones]
        self._summed = [bool(zone.before) for zone in zones]
        self._last = [()] * len(zones)
        numbers = [zone.numbers for zone in zones]
        longest = min(max(numbers), BLOCK)
        if len(self._mean) < longest:
            self._values, self._mean = np.empty(longest), np.empty(longest)
        if len(self._sums_buffer) < sum(numbers):
            self._sums_buffer = np.empty(sum(numbers))
        self.sums = np.split(self._sums_buffer[: sum(numbers)], np.cumsum(numbers)[:-1])
        sizes = [zone.stop - zone.start if zone.dtype in INTEGERS else 0 for zone in zones]
        if len(self._firsts_buffer) < sum(sizes):
            self._firsts_buffer = bytearray(sum(sizes))
        room = memoryview(self._firsts_buffer)
        self.firsts = []
        for size in sizes:
            self.firsts.append(room[:size])
            room = room[size:]

    def add(self, index: int, parts: Sequence[Part], *, are_last: bool) -> None:
        """Take what the next updates have for a zone."""
        zone = self._zones[index]
        for part in parts:  # one by one, so that it does not matter which come together
            self._weights[index] += part.weight
        if zone.dtype in INTEGERS:
            for part in parts:
                self._add_integers(index, part.integers(), part.weight)
        elif are_last:
            self._last[index] = parts
        else:
            for block in blocks(zone.numbers):
                self._sum(index, parts, block, self.sums[index][block])
            self._summed[index] = True

    def result(self, index: int, block: slice) -> Array:
        """The mean of a block of a zone, in an array that is used again."""
        zone, weight = self._zones[index], self._weights[index]
        mean = self._mean[: block.stop - block.start]
        total = self._sum(index, self._last[index], block, mean)
        if _is_power_of_two(weight):
            np.multiply(total, 1 / weight, out=mean)  # gives the same bits in a third of the time
        else:
            np.divide(total, weight, out=mean)
        if zone.dtype in INTEGERS:
            return shift(Elements(zone.dtype, self.firsts[index]).native()[block], mean)
        return mean

    def _sum(self, index: int, parts: Sequence[Part], block: slice, out: Array) -> Array:
        """The sum of a block with those of further updates: ``out``, unless there are none."""
        total = self.sums[index][block] if self._summed[index] else None
        for part in parts:
            values = out if total is None else self._values[: len(out)]
            part.reals(block, values)
            if part.weight != 1:
                np.multiply(values, part.weight, out=values)
            total = values if total is None else np.add(total, values, out=out)
        assert total is not None, "a zone that nobody has anything for is kept"
        return total

    def _add_integers(self, index: int, values: Array, weight: float) -> None:
        firsts = Elements(self._zones[index].dtype, self.firsts[index]).native()
        if not self._summed[index]:
            self._summed[index] = True
            firsts[:] = values
            self.sums[index][:] = 0
            return
        for block in blocks(len(values), SMALL_BLOCK):
            by = difference(values[block], firsts[block])
            total = self.sums[index][block]
            np.multiply(by, weight, out=by)
            np.add(total, by, out=total)


def _is_power_of_two(weight: float) -> bool:
    """Whether dividing by a weight is to multiply by its inverse, which then is exact."""
    fraction, exponent = math.frexp(weight)
    return fraction == 0.5 and abs(exponent) < 1000
