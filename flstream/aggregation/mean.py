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

    Attributes:
        sums: of each zone of the range: float64, of the values times the weights. Of integers, of
            their differences from the first.
        firsts: of each zone of integers the first update's; of others nothing.
    """

    def __init__(self) -> None:
        self._zones: Sequence[Zone] = ()
        self._weights: list[float] = []
        self._sums_buffer = np.empty(0)
        self._firsts_buffer = bytearray()
        self._mean = np.empty(BLOCK)
        self.sums: list[Array] = []
        self.firsts: list[memoryview] = []

    def begin(self, zones: Sequence[Zone]) -> None:
        """A new range begins. Where a zone has a weight already, its sums are to be filled in."""
        self._zones = zones
        self._weights = [zone.before for zone in zones]
        numbers = [zone.numbers for zone in zones]
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

    def add(self, index: int, part: Part, weight: float) -> None:
        """Take what the next update has for a zone."""
        is_first = not self._weights[index]
        self._weights[index] += weight
        sums = self.sums[index]
        if part.zone.dtype in INTEGERS:
            self._add_integers(index, part.integers(), weight, is_first=is_first)
        else:
            for place, block in part.reals(into=sums if is_first else None):
                if weight != 1:
                    np.multiply(block, weight, out=block)
                if not is_first:
                    np.add(sums[place], block, out=sums[place])

    def result(self, index: int, part: slice) -> Array:
        """The mean of a block of a zone, in an array that is used again."""
        total, weight = self.sums[index][part], self._weights[index]
        mean = self._mean[: len(total)]
        if _is_power_of_two(weight):
            np.multiply(total, 1 / weight, out=mean)  # gives the same bits in a third of the time
        else:
            np.divide(total, weight, out=mean)
        zone = self._zones[index]
        if zone.dtype in INTEGERS:
            return shift(Elements(zone.dtype, self.firsts[index]).native()[part], mean)
        return mean

    def _add_integers(self, index: int, values: Array, weight: float, *, is_first: bool) -> None:
        firsts = Elements(self._zones[index].dtype, self.firsts[index]).native()
        if is_first:
            firsts[:] = values
            self.sums[index][:] = 0
            return
        for part in blocks(len(values), SMALL_BLOCK):
            by = difference(values[part], firsts[part])
            total = self.sums[index][part]
            np.multiply(by, weight, out=by)
            np.add(total, by, out=total)


def _is_power_of_two(weight: float) -> bool:
    """Whether dividing by a weight is to multiply by its inverse, which then is exact."""
    fraction, exponent = math.frexp(weight)
    return fraction == 0.5 and abs(exponent) < 1000
