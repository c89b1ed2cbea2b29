"""The methods of a job file: how each weighs updates, and how it folds them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from flstream.aggregation.coordinates import CoordinateFold
from flstream.aggregation.elements import Array
from flstream.aggregation.geometric_median import geometric_median_weights
from flstream.aggregation.krum import AroundMedian, bulyan_weights, krum_weights
from flstream.aggregation.mean import WeightedMean
from flstream.aggregation.next_model import Fold
from flstream.aggregation.own_rule import OwnRule
from flstream.aggregation.ranked import TrimmedMean, fraction_trim, median_trim
from flstream.aggregation.rules import AggregationRule
from flstream.errors import AggregationError
from flstream.job.aggregation_method import CHOOSING, least_updates, most_byzantine

Weigh = Callable[[Array, Array], Array]
"""Function of the inner products of the updates' differences, of shape (n, n), and of the updates'
weights, that returns their new weights; an update of weight 0 is left out."""


class Combination(NamedTuple):
    """A method in one walk.

    Attributes:
        fold: Fold of the updates.
        weigh: Weighs the updates before that; None for a method that does not compare them.
    """

    fold: Fold
    weigh: Weigh | None = None


def combination(rule: AggregationRule, updates: int) -> Combination:
    """Make what combines updates in one walk.

    Args:
        rule: Rule of the job file.
        updates: Number of the updates.

    Raises:
        AggregationError: They are too few; or a user's own rule cannot be made.
    """
    match rule.method:
        case "mean":
            return Combination(WeightedMean())
        case "median":
            return Combination(CoordinateFold(TrimmedMean(median_trim)))
        case "trimmed_mean":
            return Combination(CoordinateFold(TrimmedMean(fraction_trim(rule.trim))))
        case "geometric_median":
            return Combination(WeightedMean(), geometric_median_weights)
        case "bulyan":
            byzantine = _byzantine(rule, updates)
            fold = CoordinateFold(AroundMedian(2 * byzantine))
            return Combination(fold, partial(bulyan_weights, byzantine=byzantine))
        case "krum" | "multi_krum":
            byzantine, chosen = _byzantine(rule, updates), folded_updates(rule, updates)
            weigh = partial(krum_weights, byzantine=byzantine, chosen=chosen)
            return Combination(WeightedMean(), weigh)
    own = OwnRule(rule.method, rule.args)
    return Combination(
        CoordinateFold(own.fold, as_floats=True) if own.folds else WeightedMean(),
        own.weigh if own.weighs else None,
    )


def folded_updates(rule: AggregationRule, updates: int) -> int:
    """Return how many of the updates have a weight above 0; all for a user's own rule.

    Raises:
        AggregationError: There are too few updates.
    """
    if rule.method not in CHOOSING:
        return updates
    byzantine = _byzantine(rule, updates)
    if rule.method == "krum":
        return 1
    if rule.method == "bulyan":
        return updates - 2 * byzantine
    if rule.chosen is None:
        return updates - byzantine
    if rule.chosen > updates:
        raise AggregationError(
            f"multi_krum is to choose {rule.chosen} updates, and there are {updates}; lower "
            "aggregation.selected, or raise clients.min_updates"
        )
    return rule.chosen


def _byzantine(rule: AggregationRule, updates: int) -> int:
    """Return how many updates may be Byzantine: as the rule has it, or as many as possible."""
    if rule.byzantine is None:
        found, needed = most_byzantine(rule.method, updates), least_updates(rule.method, 0)
    else:
        found, needed = rule.byzantine, least_updates(rule.method, rule.byzantine)
    if updates < needed:
        raise AggregationError(
            f"{rule.method} needs {needed} or more updates where {max(found, 0)} of them may be "
            f"Byzantine, and there are {updates}; lower aggregation.byzantine, or have more sites "
            "train (clients.per_round, clients.min_updates)"
        )
    return found
