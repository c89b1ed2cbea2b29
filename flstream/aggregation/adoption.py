"""Adoption: one update becomes the next model, or its site's own file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from flstream.aggregation.ahead import WriteBehind
from flstream.aggregation.regions import not_finite
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.update import CollectedUpdate, Reading
from flstream.aggregation.walk import OnRange, fold_updates
from flstream.job.bodies import MAIN
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.digests import BodyDigest
from flstream.model.dtypes import FLOATS, SCALES, first_not_finite, load, numbers_in
from flstream.model.joined import SplitWriter, part_layout
from flstream.model.layout import Layout
from flstream.model.source import Scratch, Sink, Source


def adopt_update(
    base: Source,
    updates: Sequence[CollectedUpdate],
    rule: AggregationRule,
    sink: Sink,
    step: int,
    on_range: OnRange,
) -> str:
    """Make an update the next model.

    An update with all tensors and full weights is copied: see :func:`is_adopted_whole`. One that is
    partial, or a difference, or has tensors that are not aggregated, is folded into the model that
    it was trained from.

    Args:
        base: The model that the site started from.
        updates: The update; none gives the model itself.
        rule: Which tensors count, and whether what is not finite is refused.
        sink: Takes the next model. It is left unfinished.
        step: Bytes that are copied or folded at a time.
        on_range: Called after each range.

    Returns:
        Digest of the next model.

    Raises:
        UpdateRefusedError: The update does not fit the model or is not finite.
    """
    layout = base.layout
    if not all(is_adopted_whole(layout, update, rule) for update in updates):
        return fold_updates(base, updates, rule, sink, step, on_range)
    readings = [Reading(update, layout, step) for update in updates]
    digest = BodyDigest(layout)
    for start, stop in layout.ranges(step):
        (out,) = sink.views(start, stop)
        for reading in readings:
            reading.copy(start, stop, out)
            if rule.on_nonfinite == "reject":
                _expect_finite(reading.update.site, layout, start, out)
        if not readings:
            base.read(start, stop, out)
        sink.commit(start, stop)
        digest.update([out])
        on_range(stop)
    for reading in readings:
        reading.update.confirm()
    return digest.hexdigest()


def is_adopted_whole(layout: Layout, update: CollectedUpdate, rule: AggregationRule) -> bool:
    """Return whether an update becomes the next model byte for byte."""
    is_whole = len(rule.selected(layout)) == len(layout.tensors)
    return is_whole and update.params_type == "FULL" and not update.partial


def expect_sound(
    base: Source, update: CollectedUpdate, step: int, on_range: Callable[[int], None]
) -> None:
    """Refuse an update that does not fit the model, or has a float that is not finite.

    Args:
        base: The model that it was trained from.
        update: The update.
        step: Bytes that are read at a time.
        on_range: Called after each range; an error that it raises ends the reading.

    Raises:
        UpdateRefusedError: The message names site and tensor.
    """
    reading, scratch = Reading(update, base.layout, step), Scratch()
    for start, stop in base.layout.ranges(step):
        data = reading.read(start, stop, scratch)
        _expect_finite(update.site, reading.carried, reading.place(start), data)
        on_range(stop)


def _expect_finite(site: str, layout: Layout, start: int, data: memoryview) -> None:
    """Refuse a site's update if a range of it has floats that are not finite."""
    for run in layout.runs(start, start + len(data)):
        if run.dtype in FLOATS | SCALES:
            numbers = numbers_in(run.dtype, data[run.start - start : run.stop - start])
            index = first_not_finite(numbers)
            if index is not None:
                value = np.empty(1)
                load(numbers[index : index + 1], value)
                raise not_finite(site, layout, run, index, value[0])


def write_site_model(
    path: Path,
    base: Source,
    update: CollectedUpdate,
    rule: AggregationRule,
    step: int,
    check: Callable[[], None],
) -> str:
    """Write the model that a site has sent, range by range, and return its digest.

    It is what adopting the update would give: an update with all tensors as it is, a partial one or
    a difference made full against the model that it was trained from. The file that was there is
    replaced in one step.

    Args:
        path: The file.
        base: The model that the site started from, with the bodies that travel with it.
        update: The site's update.
        rule: Which tensors count, and whether what is not finite is refused.
        step: Bytes that are written at a time.
        check: Called now and then; raises to end the work.

    Raises:
        UpdateRefusedError: The update does not fit the model, or is not finite.
        CheckpointError: The disk does not take it.
    """
    # Not durable: a power cut shows in the digest, and then it is made again.
    # Bodies that travel with the model are no part of it.
    layout = part_layout(base.layout, MAIN, rule.bodies)
    with FileSink(path, layout, {"format": "pt"}, durable=False) as sink:
        writer = SplitWriter({MAIN: sink}, base.layout)
        with closing(WriteBehind(base.layout, writer.write)) as target:
            adopt_update(base, [update], rule.adopting(), target, step, lambda _: check())
        sink.finish()
    return writer.digests()[MAIN]


class FoldKeeper:
    """Files with the models of a fold's updates, each written before the fold.

    Should the run be cut off before the fold is on record, the fold is done again, and with it
    this.

    Args:
        path_of: Returns where the model of a site lies.
        base: The model that the sites started from.
        rule: Rule that combines updates.
        check: Called now and then; raises to end the work.

    Attributes:
        digests: By site, the digest of its model, of those that were kept so far.
    """

    def __init__(
        self,
        path_of: Callable[[str], Path],
        base: Source,
        rule: AggregationRule,
        check: Callable[[], None],
    ) -> None:
        self.digests: dict[str, str] = {}
        self._path_of = path_of
        self._base = base
        self._rule = rule
        self._check = check

    def keep(self, update: CollectedUpdate, step: int) -> None:
        """Keep the model of an update, unless one of its site is kept already.

        Where the file has the same bytes, the update is read from there from now on, so that a
        worker sends its bytes once. ``step`` is the bytes that are written at a time.
        """
        if update.site in self.digests:
            return
        path = self._path_of(update.site)
        digest = write_site_model(
            path, update.base or self._base, update, self._rule, step, self._check
        )
        self.digests[update.site] = digest
        if update.params_type == "FULL" and not update.partial and not self._rule.bodies:
            update.copy = FileSource(path)
