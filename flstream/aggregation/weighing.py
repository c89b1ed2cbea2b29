"""The first pass of a walk, in which some rules compare the updates before any is folded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from flstream.aggregation.clipping import clip_scales, clipped
from flstream.aggregation.gram import gram_matrix
from flstream.aggregation.methods import Weigh
from flstream.aggregation.rules import LEAST_WEIGHT, AggregationRule
from flstream.aggregation.steps import Steps
from flstream.aggregation.update import UpdateSource
from flstream.model.body import Source


class WeighedUpdates(NamedTuple):
    """What is folded.

    Attributes:
        updates: Updates of a weight above 0, in the cohort's order.
        scales: Factors of their differences from the model; None where none is scaled.
        are_checked: Whether all numbers of theirs were checked.
    """

    updates: Sequence[UpdateSource]
    scales: Sequence[float] | None
    are_checked: bool


def weigh_updates(
    base: Source,
    updates: Sequence[UpdateSource],
    rule: AggregationRule,
    weigh: Weigh | None,
    steps: Steps,
    on_range: Callable[[int], None],
) -> WeighedUpdates:
    """Clip and weigh updates, in one pass over them, if the rule asks for either.

    Args:
        base: Model that the sites started from.
        updates: Updates in the cohort's order.
        rule: Rule that says whether they are clipped.
        weigh: Weighs them by the inner products of their clipped differences; None for no change.
        steps: Ranges of the pass.
        on_range: Called with 0 after each range that was read.

    Raises:
        UpdateRefusedError: An update does not fit the model, or its difference has no finite norm.
    """
    if weigh is None:
        scales = clip_scales(base, updates, rule, steps, on_range)
        return WeighedUpdates(updates, scales, are_checked=scales is not None)
    gram = gram_matrix(base, updates, rule, steps, on_range)
    norms = [math.sqrt(each) for each in np.diagonal(gram).tolist()]
    scales = clipped(updates, norms, rule.clip_norm)
    if scales is not None:
        gram *= np.outer(scales, scales)
    weights = weigh(gram, np.array([update.weight for update in updates])).tolist()
    places = [place for place, weight in enumerate(weights) if weight >= LEAST_WEIGHT]
    return WeighedUpdates(
        [replace(updates[place], weight=weights[place]) for place in places],
        None if scales is None else [scales[place] for place in places],
        are_checked=True,
    )
