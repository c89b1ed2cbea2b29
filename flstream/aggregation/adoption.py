"""Adoption: one update becomes the next model, as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from flstream.aggregation.elements import FLOATS, SCALES, Elements, unit
from flstream.aggregation.optimizers import Optimization
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.steps import Steps
from flstream.aggregation.update import UpdateSource, join
from flstream.aggregation.update_set import not_finite
from flstream.aggregation.walk import fold_updates
from flstream.errors import UpdateRefusedError
from flstream.model.body import Scratch, Sink, Source
from flstream.model.copy import ObservedSink, copy
from flstream.model.digests import BodyDigest
from flstream.model.layout import Layout


def adopting(rule: AggregationRule) -> AggregationRule:
    """The rule by which one update becomes the next model, as it is."""
    return replace(rule, method="mean", clip_norm=None, factors={}, mechanism=None)


def adopt_update(
    base: Source,
    updates: Sequence[UpdateSource],
    rule: AggregationRule,
    sink: Sink,
    steps: Steps,
    on_range: Callable[[int], None],
    optimization: Optimization | None = None,
) -> str:
    """Make an update the next model.

    An update with all tensors and full weights is copied. One that is partial, or a difference, or
    has tensors that are not aggregated, is folded into the model that it was trained from.

    Args:
        base: The model that the site started from.
        updates: The update; none gives the model itself.
        rule: Which tensors count, and whether what is not finite is refused.
        sink: Takes the next model. It is left unfinished.
        steps: How finely to cut the walk.
        on_range: Called with the number of bytes done so far after each range.
        optimization: None; an adoption makes no step of an optimizer.

    Returns:
        Digest of the next model.

    Raises:
        UpdateRefusedError: The update does not fit the model or is not finite; the message names
            site and tensor.
    """
    is_whole = len(rule.selected(base.layout)) == len(base.layout.tensors)
    if any(each.partial or each.params_type == "DIFF" or not is_whole for each in updates):
        return fold_updates(base, updates, rule, sink, steps, on_range, optimization)
    source = base
    target: Sink = sink
    if updates:
        (update,) = updates
        source = update.open()
        difference = base.layout.difference(source.layout)
        if difference:
            raise UpdateRefusedError(update.site, f"does not fit the model: {difference}")
        if rule.on_nonfinite == "reject":
            target = ObservedSink(sink, _finite_only(update.site, base.layout))
    digest = BodyDigest(base.layout)
    copy(source, target, digest=digest, on_range=lambda _, stop: on_range(stop))
    return digest.hexdigest()


def _finite_only(site: str, layout: Layout) -> Callable[[int, int, Sequence[memoryview]], None]:
    """A function that refuses floats of a range that are not finite.

    Args:
        site: Name of the site whose update it is.
        layout: Layout of the update.
    """
    joined, value = Scratch(), np.empty(1)

    def check(start: int, stop: int, views: Sequence[memoryview]) -> None:
        data = join(views, joined)
        for run in layout.runs(start, stop):
            if run.dtype in FLOATS | SCALES:
                elements = Elements(run.dtype, data[run.start - start : run.stop - start])
                count = (run.stop - run.start) // unit(run.dtype)
                index = elements.first_not_finite(slice(0, count))
                if index is not None:
                    elements.load(slice(index, index + 1), value)
                    raise not_finite(site, layout, run, index, value[0])

    return check
