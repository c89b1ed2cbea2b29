"""The methods of a job file: how each weighs updates, and how it folds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise

import numpy as np

from flstream.aggregation.elements import Array, blocks
from flstream.aggregation.geometric_median import geometric_median_weights
from flstream.aggregation.krum import around_median, bulyan_weights, krum_weights
from flstream.aggregation.mean import WeightedMean
from flstream.aggregation.own_rule import OwnRule
from flstream.aggregation.ranked import fraction_trim, median_trim, trimmed_mean
from flstream.aggregation.regions import Region
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.update_set import Fold, UpdatePart
from flstream.errors import AggregationError
from flstream.job.sections import least_updates, most_byzantine

Combine = Callable[[Array, Array], Array]
"""Function of the values of a block, of shape (updates, numbers), and of the updates' weights.

The values are those of the updates that have the tensor, in the cohort's order; it may overwrite
them. It returns the new values, of shape (numbers,).
"""

Weigh = Callable[[Array, Array], Array]
"""Function of the inner products of the updates' differences, of shape (n, n), and of the updates'
weights, that returns their new weights; an update of weight 0 is left out."""


def combination(rule: AggregationRule, updates: int) -> tuple[Fold, Weigh | None]:
    """Make what folds so many updates, and what weighs them before that if the rule compares them.

    Raises:
        AggregationError: They are too few; or a user's own rule cannot be made.
    """
    match rule.method:
        case "mean":
            return WeightedMean(), None
        case "median":
            return CoordinateFold(partial(trimmed_mean, trim=median_trim)), None
        case "trimmed_mean":
            trim = fraction_trim(rule.trim)
            return CoordinateFold(partial(trimmed_mean, trim=trim)), None
        case "geometric_median":
            return WeightedMean(), geometric_median_weights
        case "bulyan":
            byzantine = _byzantine(rule, updates)
            fold = CoordinateFold(partial(around_median, left_out=2 * byzantine))
            return fold, partial(bulyan_weights, byzantine=byzantine)
        case "krum" | "multi_krum":
            byzantine = _byzantine(rule, updates)
            chosen = 1 if rule.method == "krum" else rule.chosen or updates - byzantine
            if chosen > updates:
                raise AggregationError(
                    f"multi_krum is to choose {chosen} updates, and there are {updates}; lower "
                    "aggregation.selected, or raise clients.min_updates"
                )
            weigh = partial(krum_weights, byzantine=byzantine, chosen=chosen)
            return WeightedMean(), weigh
    own = OwnRule(rule.method, rule.args)
    own_fold: Fold = CoordinateFold(own.fold) if own.folds else WeightedMean()
    return own_fold, own.weigh if own.weighs else None


def _byzantine(rule: AggregationRule, updates: int) -> int:
    """Return how many updates may be Byzantine: as the rule has it, or as many as possible."""
    if rule.byzantine is None:
        byzantine, needed = most_byzantine(rule.method, updates), least_updates(rule.method, 0)
    else:
        byzantine, needed = rule.byzantine, least_updates(rule.method, rule.byzantine)
    if updates < needed:
        raise AggregationError(
            f"{rule.method} needs {needed} or more updates where {max(byzantine, 0)} of them may "
            f"be Byzantine, and there are {updates}; lower aggregation.byzantine, or have more "
            "sites train (clients.per_round, clients.min_updates)"
        )
    return byzantine


class CoordinateFold:
    """A fold that combines the values of each coordinate, in float64: all updates' at once."""

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
