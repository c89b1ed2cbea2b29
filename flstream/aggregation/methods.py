"""Aggregation methods: the fold of each, and the weights that it gives updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pkgutil import resolve_name

import numpy as np

from flstream.aggregation.elements import Array, blocks
from flstream.aggregation.mean import WeightedMean
from flstream.aggregation.own_rule import OwnRule
from flstream.aggregation.regions import Region
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.update_set import Fold, UpdatePart
from flstream.job.aggregation_section import METHODS, is_own

Combine = Callable[[Array, Array], Array]
"""Function of the values of a block, of shape (updates, numbers), and of the updates' weights.

The values are those of the updates that have the tensor, in the cohort's order; it may overwrite
them. It returns the new values, of shape (numbers,).
"""

Weigh = Callable[[Array, Array], Array]
"""Function that weighs updates for the fold, from the inner products of their differences.

These are the differences from the model, after clipping, so the products are of shape (n, n); the
second argument has the updates' own weights. It returns new weights, 0 or more, of which the ratios
alone count: the mean divides by their sum. An update whose weight is below
:data:`flstream.aggregation.rules.LEAST_WEIGHT` is left out.
"""

Combination = tuple[Fold, Weigh | None]
"""The fold of updates; and, for a method that compares whole updates first, the function that
gives them their weights in it. For other methods it is None."""


def combination(rule: AggregationRule, updates: int) -> Combination:
    """Make the fold of a rule for a number of updates, and its weighing."""
    if not is_own(rule.method):
        make = resolve_name(f"flstream.aggregation.{METHODS[rule.method].make}")
        combined: Combination = make(updates, **rule.args)
        return combined
    own = OwnRule(rule.method, rule.args)
    fold: Fold = CoordinateFold(own.fold) if own.folds else WeightedMean()
    return fold, own.weigh if own.weighs else None


class CoordinateFold:
    """Fold that combines the values of each coordinate of all updates, in float64."""

    def __init__(self, combine: Combine) -> None:
        self._combine = combine
        self._values: list[Array] = []
        self._weights: list[list[float]] = []
        self._buffer = np.empty(0)

    def begin(self, regions: Sequence[Region]) -> None:
        """Begin a range."""
        shapes = [(region.carriers.bit_count(), region.numbers) for region in regions]
        starts = list(accumulate((count * numbers for count, numbers in shapes), initial=0))
        if len(self._buffer) < starts[-1]:
            self._buffer = np.empty(starts[-1])
        self._weights = [[] for _ in regions]
        self._values = [
            self._buffer[start:stop].reshape(shape)
            for (start, stop), shape in zip(pairwise(starts), shapes, strict=True)
        ]

    def add(self, index: int, parts: Sequence[UpdatePart], *, are_last: bool) -> None:
        """Add the parts of further updates for a region."""
        weights = self._weights[index]
        for part in parts:
            row = self._values[index][len(weights)]
            for block in blocks(len(row)):
                part.reals(block, row[block])
            weights.append(part.weight)

    def result(self, index: int, block: slice) -> Array:
        """Return the combined values of a block of a region."""
        return self._combine(self._values[index][:, block], np.array(self._weights[index]))
