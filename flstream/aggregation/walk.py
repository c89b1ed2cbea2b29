"""The walk: one pass over the body, folding range k of every update into range k of the next model.

A rule that clips or compares updates has a pass over them before that.

It needs a few ranges of memory, whatever the model's size and however many updates there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from flstream.aggregation.clipping import clip_scales, clipped
from flstream.aggregation.elements import quietly
from flstream.aggregation.finite_check import find_not_finite
from flstream.aggregation.gram import gram_matrix
from flstream.aggregation.methods import Weigh, combination
from flstream.aggregation.next_model import NextModel
from flstream.aggregation.optimizers import Optimization
from flstream.aggregation.rules import LEAST_WEIGHT, AggregationRule
from flstream.aggregation.steps import Steps
from flstream.aggregation.update import UpdateSource
from flstream.aggregation.update_set import UpdateSet, element_at
from flstream.errors import AggregationError
from flstream.job.aggregation_method import is_own
from flstream.model.source import Sink, Source


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


@quietly
def fold_updates(
    base: Source,
    updates: Sequence[UpdateSource],
    rule: AggregationRule,
    sink: Sink,
    steps: Steps,
    on_range: Callable[[int], None],
    optimization: Optimization | None = None,
) -> str:
    """Fold updates into the next model.

    Args:
        base: Model that the sites started from.
        updates: One or more updates, always in the same order, since float sums depend on it.
        rule: Rule that combines them.
        sink: Sink of the next model. It is left unfinished: the caller makes it durable.
        steps: Ranges of the walk.
        on_range: Called with the number of bytes folded so far after each range that was read; an
        error that it raises ends the walk.
        optimization: Server optimizer and its state; without one, the aggregate is the next model.

    Returns:
        The digest of the next model.

    Raises:
        UpdateRefusedError: An update does not fit the model or is not finite; the message names
            site and tensor. The walk may be repeated without that site.
        AggregationError: The updates are too few for the rule; or they are sound, and still the
            next model would not be finite.
    """
    fold, weigh = combination(rule, len(updates))
    weighed = weigh_updates(base, updates, rule, weigh, steps, on_range)
    checks_finite = rule.is_ranked and not weighed.are_checked
    cohort = UpdateSet(
        base, weighed.updates, rule, steps, scales=weighed.scales, checks_finite=checks_finite
    )
    model = NextModel(sink, cohort.old, rule, optimization, len(updates))
    bad = None
    with cohort.reading_ahead(steps.step):
        for start, stop in base.layout.ranges(steps.step):
            regions = cohort.begin(start, stop)
            fold.begin(regions)
            for index, parts, are_last in cohort.parts(start, stop, regions):
                fold.add(index, parts, are_last=are_last)
            bad = model.write(start, stop, regions, fold)
            if bad is not None:
                break
            on_range(stop)
    if bad is not None:
        find_not_finite(base, updates, rule, steps, start, on_range)
        hint = (
            f"mend {PurePath(rule.method).name}"
            if is_own(rule.method)
            else "lower their weights or the learning rates"
        )
        raise AggregationError(
            f"{element_at(base.layout, *bad)} would not be finite in the next model, though "
            f"all updates are; {hint}"
        )
    return model.digest
