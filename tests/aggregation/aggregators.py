"""The aggregators there are. A new one is a line in :data:`AGGREGATORS`."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from flstream.aggregation.rules import AggregationRule

Array = np.ndarray


class Aggregator(NamedTuple):
    """What a contract test knows of an aggregator.

    Attributes:
        rule: the rule that asks for it.
        definition: the aggregate of values of shape [sites, elements], with a weight for each
            site: what the aggregator has to come to. Works on float64 and on fractions.
        ignores_order: whether another order of the sites gives the same bits for any floats, and
            not only for those whose sums are exact.
    """

    rule: AggregationRule
    definition: Callable[[Array, Array], Array]
    ignores_order: bool


def weighted_mean(values: Array, weights: Array) -> Array:
    """The sum of the values times their weights, by the sum of the weights."""
    return (values * weights[:, None]).sum(axis=0) / weights.sum()


def trimmed(left_out: Callable[[int], int]) -> Callable[[Array, Array], Array]:
    """The plain mean of what is left of the sorted values, by how many go at either end."""

    def definition(values: Array, weights: Array) -> Array:
        ends = left_out(len(values))
        left = np.sort(values, axis=0)[ends : len(values) - ends]
        return left.sum(axis=0) / len(left)

    return definition


AGGREGATORS = {
    "mean": Aggregator(AggregationRule(), weighted_mean, ignores_order=False),
    "median": Aggregator(
        AggregationRule(method="median"), trimmed(lambda n: (n - 1) // 2), ignores_order=True
    ),
    "trimmed_mean": Aggregator(
        AggregationRule(method="trimmed_mean", trim=0.25), trimmed(lambda n: n // 4), True
    ),
}
