"""Partial weighted mean in a file, for cohorts that cannot be read at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flstream.aggregation.elements import blocks
from flstream.aggregation.mean import WeightedMean
from flstream.aggregation.regions import Region, SideLayout, element_at
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.update import CollectedUpdate
from flstream.aggregation.update_set import UpdateSet
from flstream.aggregation.walk import OnRange, find_not_finite, folded_ranges, weigh_updates
from flstream.errors import AggregationError
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.dtypes import FLOATS, first_not_finite
from flstream.model.source import Source


class PartialSum:
    """Weighted sums of some sites' updates, to which updates of others are added.

    The file has, in float64, the sum of each number. It is replaced as a whole each time updates
    are added, so that an addition that fails leaves the sums before.

    A walk with it as the ``earlier`` updates makes the next model, of the same bits as if all had
    been folded in one walk, in the same order.

    Args:
        path: Path of the file.
        base: Model that the sites started from.
        rule: Rule that combines updates by the mean.

    Attributes:
        sites: Names of the sites whose updates are in it, in the order in which they were added.
        weights: For each tensor of the model the sum of their weights.
    """

    def __init__(self, path: Path, base: Source, rule: AggregationRule) -> None:
        if rule.needs_all_updates:
            raise ValueError(f"{rule.method} needs all updates at once; it has no partial sum")
        self.sites: Sequence[str] = ()
        self._path = path
        self._base = base
        self._rule = rule
        model, selected = base.layout, rule.selected(base.layout)
        self.weights: Sequence[float] = [0.0] * len(model.tensors)
        self._side_layout = SideLayout(
            model,
            [("sum", spec, "F64") for spec in model.tensors if spec.name in selected],
        )
        self._file: FileSource | None = None

    def add(self, updates: Sequence[CollectedUpdate], step: int, on_range: OnRange) -> None:
        """Add updates of sites that the sum does not have yet.

        Args:
            updates: Updates in the cohort's order; none leaves the file as it is.
            step: Bytes that are added at a time.
            on_range: Called with the bytes of the model done so far, after each range that was
                read; an error that it raises leaves the file as it was.

        Raises:
            UpdateRefusedError: An update does not fit the model, is not finite or was changed
                meanwhile; none of them was added.
            AggregationError: They are sound, but their sum with the others would not be finite.
            CheckpointError: The file cannot be written.
        """
        sites = [update.site for update in updates]
        twice = sorted({site for site in sites if [*self.sites, *sites].count(site) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is in the partial sum already")
        if not updates:
            return
        base, rule = self._base, self._rule
        _, _, scales = weigh_updates(base, updates, rule, None, step, on_range)
        cohort = UpdateSet(base, updates, rule, step, scales=scales, before=self.weights)
        mean = WeightedMean()
        quiet = np.errstate(over="ignore", invalid="ignore")
        with quiet, FileSink(self._path, self._side_layout.layout, durable=False) as sink:
            for start, stop, regions in folded_ranges(cohort, mean, self, holds_last=False):
                bad = self._first_not_finite(mean, regions)
                if bad is not None:
                    find_not_finite(base, updates, rule, step, start, on_range)
                    raise AggregationError(
                        f"{bad} has a sum that is not finite, though all updates are; "
                        "lower their weights"
                    )
                for sums, region in zip(mean.sums, regions, strict=True):
                    if not region.is_kept:
                        _, first, last = self._side_layout.place("sum", region)
                        (out,) = sink.views(first, last)
                        out[:] = sums.view(np.uint8).data
                        sink.commit(first, last)
                on_range(stop)
            for update in updates:
                update.confirm()
            self._file = sink.finish()
        self.sites = [*self.sites, *sites]
        self.weights = self._weights_with(cohort)

    def _weights_with(self, cohort: UpdateSet) -> Sequence[float]:
        """Return the weight of each tensor with further updates added."""
        weights = dict(zip(self._base.layout.by_name, self.weights, strict=True))
        for region in cohort.regions:
            weight = region.before
            for place, reading in enumerate(cohort.readings):
                if region.carried_by(place):
                    weight += region.weight_of(reading)
            for spec in self._base.layout.overlapping(region.start, region.stop):
                weights[spec.name] = weight
        return list(weights.values())

    def load(self, mean: WeightedMean, regions: Sequence[Region]) -> None:
        """Fill in the sums of a range that the mean has begun."""
        for sums, region in zip(mean.sums, regions, strict=True):
            if region.before and self._file is not None:
                _, first, last = self._side_layout.place("sum", region)
                self._file.read(first, last, sums.view(np.uint8).data)

    def _first_not_finite(self, mean: WeightedMean, regions: Sequence[Region]) -> str | None:
        if self._rule.on_nonfinite == "allow":
            return None
        for sums, region in zip(mean.sums, regions, strict=True):
            if region.dtype in FLOATS and not region.is_kept:
                for part in blocks(len(sums)):
                    bad = first_not_finite(sums[part], part.start)
                    if bad is not None:
                        return element_at(self._base.layout, region, bad)
        return None
