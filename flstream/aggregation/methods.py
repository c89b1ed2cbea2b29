"""The methods of a job file: how each weighs updates, and how it folds them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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
from flstream.job.aggregation_method import least_updates, most_byzantine

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
            return CoordinateFold(TrimmedMean(median_trim)), None
        case "trimmed_mean":
            return CoordinateFold(TrimmedMean(fraction_trim(rule.trim))), None
        case "geometric_median":
            return WeightedMean(), geometric_median_weights
        case "bulyan":
            byzantine = _byzantine(rule, updates)
            fold = CoordinateFold(AroundMedian(2 * byzantine))
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
    made: Fold = CoordinateFold(own.fold) if own.folds else WeightedMean()
    return made, own.weigh if own.weighs else None


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
