"""Adoption: one update becomes a model as it is, the next one or a file of its site's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from flstream.aggregation.ahead import WriteBehind
from flstream.aggregation.elements import FLOATS, SCALES, Elements, unit
from flstream.aggregation.optimizers import Optimization
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.steps import Steps
from flstream.aggregation.update import UpdateSource, join
from flstream.aggregation.update_set import not_finite
from flstream.aggregation.walk import fold_updates
from flstream.errors import UpdateRefusedError
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.copy import ObservedSink, copy
from flstream.model.digests import BodyDigest
from flstream.model.joined import MAIN, DiscardWriter, SplitWriter, part_layout
from flstream.model.layout import Layout
from flstream.model.source import Scratch, Sink, Source


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


TRAINING = "flstream.training"
"""Key of the file's header that has the training which the model came of."""


def write_site_model(
    path: Path,
    base: Source,
    update: UpdateSource,
    rule: AggregationRule,
    steps: Steps,
    check: Callable[[], None],
    metadata: Mapping[str, str],
) -> str:
    """Write the model that a site has sent, range by range, and return its digest.

    It is what adopting the update would give: an update with all tensors as it is, a partial one or
    a difference made full against the model that it was trained from. The file that was there is
    replaced in one step.

    Args:
        path: The file.
        base: The model that the site started from, with the bodies that travel with it.
        update: What it has sent.
        rule: Which tensors count, and whether what is not finite is refused.
        steps: How finely to cut the work.
        check: Called now and then; raises to end the work.
        metadata: Strings for the file's header.

    Raises:
        UpdateRefusedError: The update does not fit the model, or is not finite.
        CheckpointError: The disk does not take it.
    """
    # Not durable: a power cut shows in the digest, and then it is made again.
    header = {"format": "pt", **metadata}
    # Multiplied by a weight and divided by it again, a float64 need not be what it was.
    model = replace(update, weight=1.0)
    if not rule.bodies:
        with FileSink(path, base.layout, header, durable=False) as sink:
            digest = adopt_update(base, [model], adopting(rule), sink, steps, lambda _: check())
            sink.finish()
        return digest
    # What travels with the model is no part of it.
    layouts = {body: part_layout(base.layout, body, rule.bodies) for body in (MAIN, *rule.bodies)}
    with FileSink(path, layouts[MAIN], header, durable=False) as sink:
        others = {body: DiscardWriter(layouts[body]) for body in rule.bodies}
        writer = SplitWriter({MAIN: sink, **others})
        with closing(WriteBehind(base.layout, writer.write)) as target:
            adopt_update(base, [model], adopting(rule), target, steps, lambda _: check())
        sink.finish()
    return writer.digests()[MAIN]


def kept_update(path: Path, update: UpdateSource, rule: AggregationRule) -> UpdateSource:
    """An update whose model was written, as it is to be folded.

    It is read from the file where that has the same bytes, so that a worker has to send it once.

    Args:
        path: The file.
        update: The update.
        rule: How updates are combined.
    """
    is_same = update.params_type == "FULL" and not update.partial and not rule.bodies
    return replace(update, open=lambda: FileSource(path, immutable=True)) if is_same else update
