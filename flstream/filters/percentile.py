"""Percentile privacy: the largest changes are shared, and bounded.

Shokri and Shmatikov, "Privacy-preserving deep learning", CCS 2015, doi:10.1145/2810103.2813687, in
the form of NVFlare's filter of that name.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flstream.filters.block import Block, Passage, Values, blocks_of, numbers_of
from flstream.filters.selection import percentile
from flstream.model.random_numbers import Floats


@dataclass(frozen=True)
class PercentileFilter:
    """Filter of one update.

    Attributes:
        cutoff: Absolute change below which a number does not change.
        most: The most that a number changes.
    """

    cutoff: float
    most: float

    @classmethod
    def of(cls, values: Values, passage: Passage, percent: float, gamma: float) -> PercentileFilter:
        """Find the cutoff, in a few passes over the update.

        Args:
            values: The update's differences.
            passage: Its number of steps.
            percent: Percentile of the absolute changes that is the cutoff, from 0 to 100.
            gamma: The most that a number changes in a step.
        """
        count = sum(map(numbers_of, values.tensors))
        cutoff = 0.0
        if count:
            cutoff = percentile(
                lambda: (np.abs(values.block(*each)) for each in blocks_of(values)), count, percent
            )
        return cls(cutoff, gamma * passage.steps)

    def __call__(self, values: Floats, block: Block) -> Floats:
        """Return the changes that are shared, and 0 for the others."""
        if not block.shape:
            return values
        values[np.abs(values) < self.cutoff] = 0.0
        return np.clip(values, -self.most, self.most, out=values)
