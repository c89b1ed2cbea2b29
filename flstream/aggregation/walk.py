"""The walk: one pass over the body, folding range k of every update into range k of the next model.

A rule that clips or compares updates has a pass over them before that.

It needs a few ranges of memory, whatever the model's size and however many updates there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from flstream.aggregation.clipping import clip_scales, difference_norms
from flstream.aggregation.elements import block_room, blocks
from flstream.aggregation.gram import gram_matrix
from flstream.aggregation.mean import WeightedMean
from flstream.aggregation.methods import Weigh, combination
from flstream.aggregation.next_model import NextModel
from flstream.aggregation.optimizers import Optimization
from flstream.aggregation.regions import element_at
from flstream.aggregation.rules import LEAST_WEIGHT, AggregationRule
from flstream.aggregation.update import UpdateSource
from flstream.aggregation.update_set import UpdateSet
from flstream.errors import AggregationError, UpdateRefusedError
from flstream.job.sections import is_own
from flstream.model.dtypes import FLOATS, first_not_finite
from flstream.model.source import Sink, Source

if TYPE_CHECKING:
    from flstream.aggregation.partial_sum import PartialSum

OnRange = Callable[[int], None]
"""Called with the bytes of the model that are done; an error that it raises ends the walk."""


def fold_updates(
    base: Source,
    updates: Sequence[UpdateSource],
    rule: AggregationRule,
    sink: Sink,
    step: int,
    on_range: OnRange,
    optimization: Optimization | None = None,
    earlier: PartialSum | None = None,
) -> str:
    """Fold updates into the next model.

    Args:
        base: Model that the sites started from.
        updates: Updates, always in the same order, since float sums depend on it; one or more, if
            nobody has sent any earlier.
        rule: Rule that combines them.
        sink: Sink of the next model. It is left unfinished: the caller makes it durable.
        step: Bytes that are folded at a time: see :func:`flstream.aggregation.steps.plan_step`.
        on_range: Called after each range that was read.
        optimization: Server optimizer and its state; without one, the aggregate is the next model.
        earlier: Sum of updates that came before these; None for none.

    Returns:
        The digest of the next model.

    Raises:
        UpdateRefusedError: An update does not fit the model or is not finite; the message names
            site and tensor. The walk may be repeated without that site.
        AggregationError: The updates are too few for the rule; or they are sound, and still the
            next model would not be finite.
    """
    if earlier is not None and not (updates or earlier.sites):
        raise AggregationError("no update was added to the partial sum, so it has no mean")
    fold, weigh = combination(rule, len(updates))
    # Numbers that are not finite are found in the results, and reported there.
    with np.errstate(over="ignore", invalid="ignore"):
        left, scales = weigh_updates(base, updates, rule, weigh, step, on_range)
        are_checked = weigh is not None or scales is not None
        checks_finite = rule.is_ranked and not are_checked
        before = None if earlier is None else earlier.weights
        cohort = UpdateSet(
            base, left, rule, step, scales=scales, before=before, checks_finite=checks_finite
        )
        count = len(updates) + (0 if earlier is None else len(earlier.sites))
        model = NextModel(sink, cohort.old, rule, optimization, count)
        bad = None
        for start, stop, regions, contributions in cohort.ranges():
            fold.begin(regions)
            if earlier is not None:
                assert isinstance(fold, WeightedMean)
                earlier.load(fold, regions)
            for index, parts, are_last in contributions:
                fold.add(index, parts, are_last=are_last)
            bad = model.write(start, stop, regions, fold)
            if bad is not None:
                break
            on_range(stop)
        if bad is not None:
            find_not_finite(base, updates, rule, step, start, on_range)
            hint = (
                f"mend {PurePath(rule.method).name}"
                if is_own(rule.method)
                else "lower their weights or the learning rates"
            )
            raise AggregationError(
                f"{element_at(base.layout, *bad)} would not be finite in the next model, though "
                f"all updates are; {hint}"
            )
    for each in updates:
        each.confirm()
    return model.digest


def weigh_updates(
    base: Source,
    updates: Sequence[UpdateSource],
    rule: AggregationRule,
    weigh: Weigh | None,
    step: int,
    on_range: OnRange,
) -> tuple[Sequence[UpdateSource], Sequence[float] | None]:
    """Clip and weigh updates, in one pass over them, if the rule asks for either.

    Returns:
        The updates of a weight above 0, in the cohort's order, and the factors of their differences
        from the model; None where none is scaled.
    """
    if weigh is None and rule.clip_norm is None:
        return updates, None
    cohort = UpdateSet(base, updates, rule, step, checks_finite=True)
    if weigh is None:
        with np.errstate(over="ignore", invalid="ignore"):
            norms = difference_norms(cohort, len(updates), on_range)
        return updates, clip_scales(updates, norms, rule.clip_norm)
    gram = gram_matrix(cohort, len(updates), on_range)
    norms = [math.sqrt(each) for each in np.diagonal(gram).tolist()]
    scales = clip_scales(updates, norms, rule.clip_norm)
    if scales is not None:
        gram *= np.outer(scales, scales)
    weights = weigh(gram, np.array([update.weight for update in updates])).tolist()
    places = [place for place, weight in enumerate(weights) if weight >= LEAST_WEIGHT]
    left = [replace(updates[place], weight=weights[place]) for place in places]
    return left, None if scales is None else [scales[place] for place in places]


def find_not_finite(
    base: Source,
    updates: Sequence[UpdateSource],
    rule: AggregationRule,
    step: int,
    folded: int,
    on_range: OnRange,
) -> None:
    """Search for the update that is the cause where the numbers of a next model are not finite.

    Updates are read again, up to the range after byte ``folded``, and every number is checked. It
    calls ``on_range(folded)`` after each range, since no more is folded.

    Raises:
        UpdateRefusedError: An update has an infinity or a NaN there, or in a mean, a number that
            becomes one when it is multiplied by the update's weight.
    """
    cohort = UpdateSet(base, updates, rule, step, checks_finite=True)
    room = block_room(FLOATS, step)
    for start, _, regions, contributions in cohort.ranges():
        if start > folded:
            return
        for index, parts, _ in contributions:
            if regions[index].dtype not in FLOATS:
                continue
            for part in parts:
                for block in blocks(part.region.numbers):
                    values = room[: block.stop - block.start]
                    part.sent(block, values)
                    np.multiply(values, part.weight, out=values)
                    bad = first_not_finite(values, block.start)
                    if bad is not None and rule.method == "mean":
                        where = element_at(base.layout, part.region, bad)
                        raise UpdateRefusedError(
                            part.site,
                            f"cannot be added up: {where}, times the weight {part.weight:g}, is "
                            "more than a float64 holds; lower the learning rate, or the number of "
                            "examples",
                        )
        on_range(folded)
