"""The walk: one pass that folds all updates, range by range, into the next model.

A rule that clips or compares updates has a pass over them before that.

It needs a few ranges of memory, whatever the model's size and however many updates there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from flstream.aggregation.elements import BLOCK, SMALL_BLOCK, Array, block_room, blocks
from flstream.aggregation.mean import WeightedMean
from flstream.aggregation.methods import Weigh, combination
from flstream.aggregation.regions import Region, element_at
from flstream.aggregation.rules import LEAST_WEIGHT, AggregationRule
from flstream.aggregation.update import CollectedUpdate
from flstream.aggregation.update_set import BaseValues, Fold, UpdateSet
from flstream.errors import AggregationError, UpdateRefusedError
from flstream.job.aggregation_section import is_own
from flstream.model.digests import BodyDigest
from flstream.model.dtypes import FLOATS, INTEGERS, first_not_finite, numbers_in, store
from flstream.model.source import Sink, Source
from flstream.telemetry.halts import halt_at

if TYPE_CHECKING:
    from flstream.aggregation.optimizers import Optimization, OptimizerWalk
    from flstream.aggregation.partial_sum import PartialSum
    from flstream.aggregation.private import PrivateMean

OnRange = Callable[[int], None]
"""Called with the bytes of the model that are done; an error that it raises ends the walk."""


def fold_updates(
    base: Source,
    updates: Sequence[CollectedUpdate],
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
        weighed, weights, scales = weigh_updates(base, updates, rule, weigh, step, on_range)
        are_checked = weigh is not None or scales is not None
        checks_finite = rule.needs_all_updates and not are_checked
        before = None if earlier is None else earlier.weights
        cohort = UpdateSet(
            base,
            weighed,
            rule,
            step,
            scales=scales,
            weights=weights,
            before=before,
            checks_finite=checks_finite,
        )
        count = len(updates) + (0 if earlier is None else len(earlier.sites))
        model = NextModel(sink, cohort.old, rule, optimization, count)
        bad = None
        for start, stop, regions in folded_ranges(cohort, fold, earlier):
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
    for update in updates:
        update.confirm()
    return model.digest


def folded_ranges(
    cohort: UpdateSet, fold: Fold, earlier: PartialSum | None, *, holds_last: bool = True
) -> Iterator[tuple[int, int, Sequence[Region]]]:
    """Fold all updates range by range; yield start, stop and regions of each range.

    With ``holds_last`` the last updates are summed once results are requested.
    """
    for start, stop, regions, contributions in cohort.ranges():
        fold.begin(regions)
        if earlier is not None:
            assert isinstance(fold, WeightedMean)
            earlier.load(fold, regions)
        for index, parts, are_last in contributions:
            fold.add(index, parts, are_last=are_last and holds_last)
        yield start, stop, regions


def weigh_updates(
    base: Source,
    updates: Sequence[CollectedUpdate],
    rule: AggregationRule,
    weigh: Weigh | None,
    step: int,
    on_range: OnRange,
) -> tuple[Sequence[CollectedUpdate], Sequence[float] | None, Sequence[float] | None]:
    """Clip and weigh updates, in one pass over them, if the rule asks for either.

    Return the updates of a weight above 0, in the cohort's order; their weights, None for those of
    the rule; and the factors of their differences from the model, None where none is scaled.
    """
    if weigh is None and rule.clip_norm is None:
        return updates, None, None
    from flstream.aggregation.clipping import clip_scales, difference_norms

    cohort = UpdateSet(base, updates, rule, step, checks_finite=True)
    if weigh is None:
        with np.errstate(over="ignore", invalid="ignore"):
            norms = difference_norms(cohort, len(updates), on_range)
        return updates, None, clip_scales(updates, norms, rule.clip_norm)
    from flstream.aggregation.gram import gram_matrix

    gram = gram_matrix(cohort, len(updates), on_range)
    norms = [math.sqrt(square) for square in np.diagonal(gram).tolist()]
    scales = clip_scales(updates, norms, rule.clip_norm)
    if scales is not None:
        gram *= np.outer(scales, scales)
    weights = weigh(gram, np.array([rule.weight_of(update) for update in updates])).tolist()
    places = [place for place, weight in enumerate(weights) if weight >= LEAST_WEIGHT]
    if scales is not None:
        scales = [scales[place] for place in places]
    return [updates[place] for place in places], [weights[place] for place in places], scales


def find_not_finite(
    base: Source,
    updates: Sequence[CollectedUpdate],
    rule: AggregationRule,
    step: int,
    folded: int,
    on_range: OnRange,
) -> None:
    """Find the update that makes numbers of the next model infinite or NaN.

    Updates are read again, up to the range after byte ``folded``, and every number is checked. It
    calls ``on_range(folded)`` after each range, since no more is folded.
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


class NextModel:
    """Writer of the next model: the aggregate, or an optimizer's step towards it."""

    def __init__(
        self,
        sink: Sink,
        old: BaseValues,
        rule: AggregationRule,
        optimization: Optimization | None,
        updates: int,
    ) -> None:
        self._sink = sink
        self._old = old
        self._is_checked = rule.on_nonfinite == "reject"
        self._digest = BodyDigest(sink.layout)
        self._optimizer: OptimizerWalk | None = None
        if optimization is not None:
            from flstream.aggregation.optimizers import OptimizerWalk

            selected = {name for name in rule.selected(sink.layout) if not rule.body_of(name)}
            self._optimizer = OptimizerWalk(optimization, sink.layout, selected, updates)
        self._private: PrivateMean | None = None
        if rule.mechanism is not None:
            from flstream.aggregation.private import PrivateMean

            self._private = PrivateMean(rule.mechanism, sink.layout)

    @property
    def digest(self) -> str:
        """Digest of the ranges written so far."""
        return self._digest.hexdigest()

    def write(
        self, start: int, stop: int, regions: Sequence[Region], fold: Fold
    ) -> tuple[Region, int] | None:
        """Write a range, unless a number that must be finite is not; return its place."""
        halt_at("fold")
        (out,) = self._sink.views(start, stop)
        for index, region in enumerate(regions):
            data = out[region.start - start : region.stop - start]
            is_float = region.dtype in FLOATS
            optimizer = self._optimizer if is_float and not region.body else None
            # The model must not show whether anybody sent private numbers.
            if region.is_kept and not (self._private and region.is_selected):
                data[:] = self._old.of(region)
                if optimizer and region.is_selected:
                    optimizer.keep(region)
                continue
            target = numbers_in(region.dtype, data)
            is_small = self._optimizer or region.fold_rule is not None
            for part in blocks(region.numbers, SMALL_BLOCK if is_small else BLOCK):
                if region.is_kept:
                    values = self._old.block(region, part).copy()
                else:
                    values = fold.result(index, part)
                if region.dtype in INTEGERS:
                    bad = first_not_finite(values, part.start)
                    if bad is None:
                        _store_rounded(values, target[part])
                        continue
                    return region, bad
                if region.fold_rule is not None:
                    np.multiply(values, region.fold_rule.scale, out=values)
                    np.add(values, self._old.block(region, part), out=values)
                if self._private and is_float:
                    self._private.apply(region, part, values, self._old.block(region, part))
                if optimizer:
                    optimizer.advance(region, part, values, self._old.block(region, part))
                store(values, target[part])
                if self._is_checked and is_float:
                    bad = first_not_finite(target[part], part.start)
                    if bad is not None:
                        return region, bad
        self._sink.commit(start, stop)
        self._digest.update([out])
        return None


def _store_rounded(values: Array, out: Array) -> None:
    """Round finite float64 half to even, to the nearest number of an integer type."""
    limits = np.iinfo(out.dtype)
    np.rint(values, out=values)
    above, below = values >= float(limits.max), values <= float(limits.min)
    out[:] = np.where(above | below, 0.0, values)
    out[above], out[below] = limits.max, limits.min
