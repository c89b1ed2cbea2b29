"""A partial weighted mean in a file, for cohorts larger than can be read at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from flstream.aggregation.clipping import clip_scales
from flstream.aggregation.elements import FLOATS, INTEGERS, blocks, first_not_finite, quietly
from flstream.aggregation.finite_check import find_not_finite
from flstream.aggregation.mean import WeightedMean
from flstream.aggregation.next_model import NextModel
from flstream.aggregation.optimizers import Optimization
from flstream.aggregation.regions import Region
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.side_layout import SideLayout, SideRange, SideTensor
from flstream.aggregation.steps import Steps
from flstream.aggregation.update import UpdateSource, join
from flstream.aggregation.update_set import UpdateSet, element_at
from flstream.errors import AggregationError, CheckpointError
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.source import Scratch, Sink, Source, views_of

_SITES = "flstream.sites"
_CLIPPED = "flstream.clipped"
_LABEL = "flstream.partial_sum"
_WEIGHTS = "weights"

OnRange = Callable[[int], None]


class PartialSum:
    """The weighted sums of the updates of some sites, to which further ones are added.

    The file has, in float64, the sum of each number and the weight of each tensor; for integers
    also the first update. It is replaced as a whole each time updates are added: a process that is
    killed leaves the sums before or those after, with the names of their sites.

    The next model has the same bits as if all updates had been folded in one walk, in the same
    order.

    Args:
        path: Path of the file. A file of an earlier process is continued.
        base: Model that the sites started from.
        rule: Rule that combines updates by the mean.
        label: Name of the updates' run and round; a file with another label is refused.

    Attributes:
        path: Path of the file.
        sites: Names of the sites whose updates are in it, in the order in which they were added.
        clipped: Names of those among them whose updates were scaled down to the rule's norm.

    Raises:
        CheckpointError: The file cannot be read, or is of another model, rule or label.
    """

    def __init__(self, path: Path, base: Source, rule: AggregationRule, label: str) -> None:
        if rule.is_ranked:
            raise ValueError(f"{rule.method} needs all updates at once; it has no partial sum")
        self.path = path
        self.sites: tuple[str, ...] = ()
        self.clipped: tuple[str, ...] = ()
        self._base = base
        self._rule = rule
        self._label = label
        model = base.layout
        self._weights = [0.0] * len(model.tensors)
        self._side_layout = _side_layout(base, rule)
        self._file: FileSource | None = None
        self._scratches = Scratch(), Scratch()
        if path.exists():
            self._load_state(FileSource(path))

    @quietly
    def add(self, updates: Sequence[UpdateSource], steps: Steps, on_range: OnRange) -> None:
        """Add updates of sites that are not in it yet.

        Args:
            updates: One or more updates, in the cohort's order.
            steps: Ranges of the walk.
            on_range: Called with the bytes of the model done so far, after each range that was
                read; an
            error that it raises leaves the file as it was.

        Raises:
            UpdateRefusedError: An update does not fit the model or is not finite; none of them was
                added.
            AggregationError: They are sound, but their sum with the others would not be finite.
            CheckpointError: The file cannot be written.
        """
        sites = [update.site for update in updates]
        twice = sorted({site for site in sites if [*self.sites, *sites].count(site) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is in the partial sum already")
        base, rule = self._base, self._rule
        scales = clip_scales(base, updates, rule, steps, on_range)
        cohort = UpdateSet(base, updates, rule, steps, scales=scales, before=self._weights)
        metadata = {_LABEL: self._label, _SITES: json.dumps([*self.sites, *sites])}
        if scales is not None:
            scaled = [site for site, each in zip(sites, scales, strict=True) if each < 1.0]
            metadata[_CLIPPED] = json.dumps([*self.clipped, *scaled])
        mean = WeightedMean()
        with FileSink(self.path, self._side_layout.layout, metadata) as sink:
            self._save_weights(sink, cohort, updates)
            for start, stop in base.layout.ranges(steps.step):
                regions = cohort.begin(start, stop)
                mean.begin(regions)
                self._load(mean, regions)
                for index, parts, _ in cohort.parts(start, stop, regions):
                    mean.add(index, parts, are_last=False)
                bad = self._first_not_finite(mean, regions)
                if bad is not None:
                    find_not_finite(base, updates, rule, steps, start, on_range)
                    raise AggregationError(
                        f"{bad} has a sum that is not finite, though all updates are; "
                        "lower their weights"
                    )
                self._save(mean, regions, sink)
                on_range(stop)
            file = sink.finish()
        self._load_state(file)

    @quietly
    def finish(
        self,
        sink: Sink,
        steps: Steps,
        on_range: OnRange,
        optimization: Optimization | None = None,
    ) -> str:
        """Write the next model: see :func:`flstream.aggregation.walk.fold_updates`.

        Raises:
            AggregationError: No update was added, or the next model would not be finite.
        """
        if not self.sites:
            raise AggregationError("no update was added to the partial sum, so it has no mean")
        cohort = UpdateSet(self._base, [], self._rule, steps, before=self._weights)
        mean = WeightedMean()
        model = NextModel(sink, cohort.old, self._rule, optimization, len(self.sites))
        for start, stop in self._base.layout.ranges(steps.step):
            regions = cohort.begin(start, stop)
            mean.begin(regions)
            self._load(mean, regions)
            bad = model.write(start, stop, regions, mean)
            if bad is not None:
                raise AggregationError(
                    f"{element_at(self._base.layout, *bad)} would not be finite in the next "
                    "model, though all updates are; lower their weights or the learning rates"
                )
            on_range(stop)
        return model.digest

    def discard(self) -> None:
        """Remove the file, once the next model is durable."""
        self._file, self.sites, self.clipped = None, (), ()
        self._weights = [0.0] * len(self._weights)
        self.path.unlink(missing_ok=True)

    def _load_state(self, file: FileSource) -> None:
        label = file.metadata.get(_LABEL)
        difference = self._side_layout.layout.difference(file.layout)
        if label != self._label:
            difference = f"it is of {label!r}, not of {self._label!r}"
        if difference:
            raise CheckpointError(
                f"{self.path} is no partial sum of this round: {difference}; remove it, and the "
                "round is folded from its beginning"
            )
        self._file = file
        self.sites = tuple(json.loads(file.metadata[_SITES]))
        self.clipped = tuple(json.loads(file.metadata.get(_CLIPPED, "[]")))
        spec = file.layout.by_name[_WEIGHTS]
        data = join(views_of(file, spec.start, spec.stop, self._scratches[0]), self._scratches[1])
        self._weights = np.frombuffer(data, dtype=np.float64).tolist()

    def _save_weights(
        self, sink: FileSink, cohort: UpdateSet, updates: Sequence[UpdateSource]
    ) -> None:
        weights, model = list(self._weights), self._base.layout
        place_of = {spec.name: place for place, spec in enumerate(model.tensors)}
        for region in cohort.regions.all:
            weight = region.before
            for place, update in enumerate(updates):
                if region.carried_by(place):
                    weight += region.weight_of(update)
            for spec in model.overlapping(region.start, region.stop):
                weights[place_of[spec.name]] = weight
        spec = self._side_layout.layout.by_name[_WEIGHTS]
        (out,) = sink.views(spec.start, spec.stop)
        np.frombuffer(out, dtype=np.float64)[:] = weights
        sink.commit(spec.start, spec.stop)

    def _load(self, mean: WeightedMean, regions: Sequence[Region]) -> None:
        for index, region in enumerate(regions):
            if not region.before or self._file is None:
                continue
            for place, target in self._places(mean, index, region):
                views = views_of(self._file, place.start, place.stop, self._scratches[0])
                target[:] = join(views, self._scratches[1])

    def _save(self, mean: WeightedMean, regions: Sequence[Region], sink: FileSink) -> None:
        for index, region in enumerate(regions):
            if region.is_kept:
                continue
            for place, data in self._places(mean, index, region):
                (out,) = sink.views(place.start, place.stop)
                out[:] = data
                sink.commit(place.start, place.stop)

    def _places(
        self, mean: WeightedMean, index: int, region: Region
    ) -> list[tuple[SideRange, memoryview]]:
        sums = mean.sums[index].view(np.uint8).data
        places = [(self._side_layout.place("sum", region), sums)]
        if region.dtype in INTEGERS:
            places.append((self._side_layout.place("first", region), mean.firsts[index]))
        return places

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


def _side_layout(base: Source, rule: AggregationRule) -> SideLayout:
    selected = rule.selected(base.layout)
    specs = [spec for spec in base.layout.tensors if spec.name in selected]
    sums = [SideTensor("sum", spec, "F64") for spec in specs]
    firsts = [SideTensor("first", spec, spec.dtype) for spec in specs if spec.dtype in INTEGERS]
    weights = (_WEIGHTS, "F64", (len(base.layout.tensors),))
    return SideLayout(base.layout, [*sums, *firsts], [weights])
