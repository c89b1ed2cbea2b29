"""The next model: the protocol of a rule that makes it of updates, and the writing of ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from flstream.aggregation.elements import (
    BLOCK,
    FLOATS,
    INTEGERS,
    SMALL_BLOCK,
    Array,
    Elements,
    blocks,
)
from flstream.aggregation.optimizers import Optimization, OptimizerWalk
from flstream.aggregation.private import PrivateMean
from flstream.aggregation.regions import Region, UpdatePart
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.update_set import BaseValues
from flstream.model.digests import BodyDigest
from flstream.model.source import Sink
from flstream.telemetry.halts import halt_at


class Fold(Protocol):
    """A way to make the next model of updates, one range at a time."""

    def begin(self, regions: Sequence[Region]) -> None:
        """Begin a range that consists of these regions."""
        ...

    def add(self, index: int, parts: Sequence[UpdatePart], *, are_last: bool) -> None:
        """Add the parts of further updates for a region.

        Updates come in the cohort's order, and every update among a region's ``carriers`` is added.

        Args:
            index: Index of the region in the range.
            parts: One or more parts.
            are_last: Whether these are the last parts. Their bytes stay valid until all results
                have been
            returned; those of others only during this call.
        """
        ...

    def result(self, index: int, block: slice) -> Array:
        """Return the new values of a block of a region; called once for each block.

        Returns:
            Float64, which may be overwritten; or, for a region of integers, their own type.
        """
        ...


class NotFinite(NamedTuple):
    """The place of an infinity or a NaN in the next model.

    Attributes:
        region: Region that has it.
        number: Index of the number in the region.
    """

    region: Region
    number: int


class NextModel:
    """Writes the next model.

    Args:
        sink: Sink of the next model.
        old: Values of the model before.
        rule: Rule that selects the tensors, says whether all numbers must be finite, and has the
            mechanism that makes them private, if one does.
        optimization: Server optimizer and its state; without one, the aggregate is the next model.
        updates: Number of updates in the fold.
    """

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
        self._block = np.empty(SMALL_BLOCK if self._private is None else BLOCK)

    @property
    def digest(self) -> str:
        """Digest of what was written."""
        return self._digest.hexdigest()

    def write(
        self, start: int, stop: int, regions: Sequence[Region], fold: Fold
    ) -> NotFinite | None:
        """Write a range, unless it has a number that must be finite and is not.

        Returns:
            The place of that number, or None.
        """
        halt_at("fold")
        (out,) = self._sink.views(start, stop)
        for index, region in enumerate(regions):
            target = out[region.start - start : region.stop - start]
            # Of numbers that are private, it must not show whether anybody sent them.
            if region.is_kept and not (self._private and region.is_selected):
                self._keep(region, target)
                continue
            bad = self._fill(index, region, fold, Elements(region.dtype, target))
            if bad is not None:
                return NotFinite(region, bad)
        self._sink.commit(start, stop)
        self._digest.update([out])
        return None

    def _keep(self, region: Region, target: memoryview) -> None:
        target[:] = self._old.of(region)
        if self._optimizer and region.is_selected and _is_optimized(region):
            self._optimizer.keep(region)

    def _fill(self, index: int, region: Region, fold: Fold, target: Elements) -> int | None:
        if region.dtype in INTEGERS:
            for part in blocks(region.numbers, SMALL_BLOCK):
                target.native()[part] = fold.result(index, part)
            return None
        is_float = region.dtype in FLOATS
        is_small = self._optimizer or region.fold_rule is not None
        for part in blocks(region.numbers, SMALL_BLOCK if is_small else BLOCK):
            if region.is_kept:
                values = self._old_block(region, part).copy()
            else:
                values = fold.result(index, part)
            if region.fold_rule is not None:
                np.multiply(values, region.fold_rule.scale, out=values)
                np.add(values, self._old_block(region, part), out=values)
            if self._private and is_float:
                self._private.apply(region, part, values, self._old_block(region, part))
            if self._optimizer and _is_optimized(region):
                self._optimizer.advance(region, part, values, self._old_block(region, part))
            target.store(part, values)
            if self._is_checked and is_float:
                bad = target.first_not_finite(part)
                if bad is not None:
                    return bad
        return None

    def _old_block(self, region: Region, part: slice) -> Array:
        block = self._block[: part.stop - part.start]
        Elements(region.dtype, self._old.of(region)).load(part, block)
        return block


def _is_optimized(region: Region) -> bool:
    """Whether a server optimizer has a part in a region."""
    return region.dtype in FLOATS and not region.body
