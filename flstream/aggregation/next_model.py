"""The next model, written range by range out of what a fold gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flstream.aggregation.cohort import OldValues
from flstream.aggregation.elements import (
    BLOCK,
    FLOATS,
    INTEGERS,
    SMALL_BLOCK,
    Array,
    Elements,
    blocks,
)
from flstream.aggregation.fold import Fold
from flstream.aggregation.optimizers import Optimization, OptimizerWalk
from flstream.aggregation.rules import Rule
from flstream.aggregation.zones import Zone
from flstream.model.body import Sink
from flstream.model.digests import BodyDigest


class NotFinite(NamedTuple):
    """Where the next model would have an infinity or a NaN: a zone, and which of its numbers."""

    zone: Zone
    number: int


class NextModel:
    """Takes the next model.

    Args:
        sink: where to.
        old: the model before.
        rule: says which tensors keep their values, and whether all others are to be finite.
        optimization: makes a step of the aggregate; without one, that is the next model.
    """

    def __init__(
        self, sink: Sink, old: OldValues, rule: Rule, optimization: Optimization | None
    ) -> None:
        self._sink = sink
        self._old = old
        self._is_checked = rule.on_nonfinite == "reject"
        self._digest = BodyDigest(sink.layout)
        self._optimizer: OptimizerWalk | None = None
        if optimization is not None:
            selected = rule.selected(sink.layout)
            self._optimizer = OptimizerWalk(optimization, sink.layout, selected)
        self._block = np.empty(SMALL_BLOCK)

    @property
    def digest(self) -> str:
        """The digest of what was written."""
        return self._digest.hexdigest()

    def write(self, start: int, stop: int, zones: Sequence[Zone], fold: Fold) -> NotFinite | None:
        """Write a range, unless it has something that is not finite, which is returned."""
        (out,) = self._sink.views(start, stop)
        for index, zone in enumerate(zones):
            target = out[zone.start - start : zone.stop - start]
            if zone.is_kept:
                self._keep(zone, target)
                continue
            bad = self._fill(index, zone, fold, Elements(zone.dtype, target))
            if bad is not None:
                return NotFinite(zone, bad)
        self._sink.commit(start, stop)
        self._digest.update([out])
        return None

    def _keep(self, zone: Zone, target: memoryview) -> None:
        target[:] = self._old.of(zone)
        if self._optimizer and zone.is_selected and zone.dtype in FLOATS:
            self._optimizer.keep(zone)

    def _fill(self, index: int, zone: Zone, fold: Fold, target: Elements) -> int | None:
        if zone.dtype in INTEGERS:
            for part in blocks(zone.numbers, SMALL_BLOCK):
                target.native()[part] = fold.result(index, part)
            return None
        is_float = zone.dtype in FLOATS
        for part in blocks(zone.numbers, SMALL_BLOCK if self._optimizer else BLOCK):
            values = fold.result(index, part)
            if self._optimizer and is_float:
                self._optimizer.advance(zone, part, values, self._old_block(zone, part))
            target.store(part, values)
            if self._is_checked and is_float:
                bad = target.first_not_finite(part)
                if bad is not None:
                    return bad
        return None

    def _old_block(self, zone: Zone, part: slice) -> Array:
        block = self._block[: part.stop - part.start]
        Elements(zone.dtype, self._old.of(zone)).load(part, block)
        return block
