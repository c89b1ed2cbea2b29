"""Rules that need all values of a coordinate at once, block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flstream.aggregation.elements import INTEGERS, Array, blocks
from flstream.aggregation.integers import whole_numbers
from flstream.aggregation.regions import Region, UpdatePart
from flstream.errors import AggregationError
from flstream.model.dtypes import BY_CODE

Combine = Callable[[Array, Array], Array]
"""Function of the values of a block, of shape (updates, numbers), and of the updates' weights.

The values are those of the updates that have the tensor, in the cohort's order; it may overwrite
them. It returns the new values, of shape (numbers,).
"""


class CoordinateFold:
    """A fold that combines the values of each coordinate.

    It holds a range of all updates at once.

    Args:
        combine: Function that combines a block.
        as_floats: Whether integers are combined in float64, and the results rounded half to even;
            otherwise they are combined as they are.
    """

    def __init__(self, combine: Combine, *, as_floats: bool = False) -> None:
        self._combine = combine
        self._as_floats = as_floats
        self._regions: Sequence[Region] = ()
        self._values: list[Array] = []
        self._weights: list[list[float]] = []
        self._buffer = bytearray()

    def begin(self, regions: Sequence[Region]) -> None:
        """Begin a range."""
        counts = [region.carriers.bit_count() for region in regions]
        types = [self._value_type(region) for region in regions]
        sizes = [
            -(-count * region.numbers * each.itemsize // 8) * 8
            for count, region, each in zip(counts, regions, types, strict=True)
        ]
        if len(self._buffer) < sum(sizes):
            self._buffer = bytearray(sum(sizes))
        self._regions, self._weights = regions, [[] for _ in regions]
        self._values, offset = [], 0
        for count, region, each, size in zip(counts, regions, types, sizes, strict=True):
            flat = np.frombuffer(self._buffer, each, count * region.numbers, offset)
            self._values.append(flat.reshape(count, region.numbers))
            offset += size

    def add(self, index: int, parts: Sequence[UpdatePart], *, are_last: bool) -> None:
        """Add the parts of further updates for a region."""
        weights = self._weights[index]
        for part in parts:
            row = self._values[index][len(weights)]
            if part.region.dtype in INTEGERS:
                row[:] = part.integers()
            else:
                for block in blocks(len(row)):
                    part.reals(block, row[block])
            weights.append(part.weight)

    def result(self, index: int, block: slice) -> Array:
        """Return the combined values of a block of a region."""
        combined = self._combine(self._values[index][:, block], np.array(self._weights[index]))
        region = self._regions[index]
        if self._as_floats and region.dtype in INTEGERS:
            if not np.isfinite(combined).all():
                raise AggregationError(
                    f"the values that aggregation.method makes of {region.dtype} integers are not "
                    "finite; mend the rule, or leave the tensors out with aggregation.exclude"
                )
            return whole_numbers(combined, _integer_type(region))
        return combined

    def _value_type(self, region: Region) -> np.dtype[np.generic]:
        if region.dtype in INTEGERS and not self._as_floats:
            return _integer_type(region)
        return np.dtype(np.float64)


def _integer_type(region: Region) -> np.dtype[np.generic]:
    return np.dtype(BY_CODE[region.dtype].numpy_name)
