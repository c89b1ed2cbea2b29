"""The next model: the protocol of a rule that makes it of updates, and the writing of ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from flstream.aggregation.elements import BLOCK, SMALL_BLOCK, Array, blocks
from flstream.aggregation.optimizers import Optimization, OptimizerWalk
from flstream.aggregation.private import PrivateMean
from flstream.aggregation.regions import BaseValues, Region, UpdatePart
from flstream.aggregation.rules import AggregationRule
from flstream.model.digests import BodyDigest
from flstream.model.dtypes import FLOATS, INTEGERS, first_not_finite, numbers_in, store
from flstream.model.source import Sink
from flstream.telemetry.halts import halt_at


class Fold(Protocol):
    """A way to make the next model of updates, one range at a time."""

    def begin(self, regions: Sequence[Region]) -> None:
        """Begin a range that consists of these regions."""
        ...

    def add(self, index: int, parts: Sequence[UpdatePart], *, are_last: bool) -> None:
        """Add the parts of further updates for the region at an index of the range.

        Updates come in the cohort's order, and every update among a region's carriers is added. The
        bytes of the last parts stay valid until all results have been returned; those of others
        only during this call.
        """
        ...

    def result(self, index: int, block: slice) -> Array:
        """Return the new values of a block of a region, once: float64, which may be overwritten."""
        ...


class NextModel:
    """Writes the next model: the aggregate of so many updates, or an optimizer's step to it."""

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
            selected = {name for name in rule.selected(sink.layout) if not rule.body_of(name)}
            self._optimizer = OptimizerWalk(optimization, sink.layout, selected, updates)
        self._private: PrivateMean | None = None
        if rule.mechanism is not None:
            self._private = PrivateMean(rule.mechanism, sink.layout)

    @property
    def digest(self) -> str:
        """Digest of what was written."""
        return self._digest.hexdigest()

    def write(
        self, start: int, stop: int, regions: Sequence[Region], fold: Fold
    ) -> tuple[Region, int] | None:
        """Write a range, unless it has a number that must be finite and is not.

        Returns:
            The region of that number, and its index there; or None.
        """
        halt_at("fold")
        (out,) = self._sink.views(start, stop)
        for index, region in enumerate(regions):
            data = out[region.start - start : region.stop - start]
            is_float = region.dtype in FLOATS
            optimizer = self._optimizer if is_float and not region.body else None
            # Of numbers that are private, it must not show whether anybody sent them.
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
    """Round finite float64 half to even, to the nearest number that an integer type has."""
    limits = np.iinfo(out.dtype)
    np.rint(values, out=values)
    above, below = values >= float(limits.max), values <= float(limits.min)
    out[:] = np.where(above | below, 0.0, values)
    out[above], out[below] = limits.max, limits.min
