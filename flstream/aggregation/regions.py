"""Regions: ranges of the body for which the same updates have elements of one type.

The part of an update in a region has its values for the model there, in float64.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flstream.aggregation.elements import FLOATS, SCALES, Array, Elements, first_not_finite, unit
from flstream.aggregation.fold_rule import FoldRule
from flstream.aggregation.update import UpdateSource
from flstream.errors import AggregationError
from flstream.model.joined import MAIN
from flstream.model.layout import Layout

if TYPE_CHECKING:
    from flstream.aggregation.rules import AggregationRule
    from flstream.aggregation.update import UpdateSource


class Region(NamedTuple):
    """A range of the body that is folded in one way.

    Attributes:
        dtype: Type of its elements.
        start: Offset in bytes of its first byte in the body.
        stop: Offset in bytes after its last byte.
        carriers: Set of the updates that have it: bit i for the one at place i of the cohort.
        before: Weight of the updates that were summed earlier.
        is_selected: Whether the rule aggregates it.
        body: Name of the body that it belongs to; empty for the model itself.
        fold_rule: How the workflow has it combined; None for the job's way.
    """

    dtype: str
    start: int
    stop: int
    carriers: int
    before: float
    is_selected: bool = True
    body: str = MAIN
    fold_rule: FoldRule | None = None

    @property
    def is_kept(self) -> bool:
        """Whether no update has it, so that it keeps its values."""
        return not self.carriers and not self.before

    @property
    def numbers(self) -> int:
        """Number of its numbers: see :class:`flstream.aggregation.elements.Elements`."""
        return (self.stop - self.start) // unit(self.dtype)

    def weight_of(self, update: UpdateSource) -> float:
        """Weight of an update here."""
        if self.fold_rule is None:
            return update.weight
        return self.fold_rule.weight_of(update.site, update.weight)

    def carried_by(self, place: int) -> bool:
        """Return whether the update at this place of the cohort has it."""
        return bool(self.carriers >> place & 1)


class Regions:
    """The regions of a body, in order.

    Args:
        layout: Layout of the body.
        rule: Rule that selects the tensors that are aggregated; the others keep their values.
        carried: For each update the names of its tensors; None for one that has all.
        before: For each tensor of the layout, the weight summed earlier.

    Raises:
        AggregationError: A tensor that is to be aggregated has numbers without a mean; the message
            names it.
    """

    def __init__(
        self,
        layout: Layout,
        rule: AggregationRule,
        carried: Sequence[Collection[str] | None],
        before: Sequence[float],
    ) -> None:
        self.all: list[Region] = []
        selected = rule.selected(layout)
        # Bits, since sets of a thousand updates for many tensors would take the memory of a model.
        whole = sum(1 << place for place, names in enumerate(carried) if names is None)
        parts = [(1 << place, names) for place, names in enumerate(carried) if names is not None]
        for spec, weight in zip(layout.tensors, before, strict=True):
            if not spec.nbytes:
                continue
            carriers, is_selected = 0, spec.name in selected
            if is_selected:
                carriers = whole | sum(bit for bit, names in parts if spec.name in names)
            if spec.dtype in SCALES and (carriers or weight):
                raise AggregationError(
                    f"tensor {spec.name!r} is {spec.dtype}, whose numbers are powers of two "
                    "without sign or zero, so they cannot be averaged; leave it out with "
                    "aggregation.exclude"
                )
            body = rule.body_of(spec.name)
            region = Region(
                spec.dtype,
                spec.start,
                spec.stop,
                carriers,
                weight,
                is_selected,
                body,
                rule.fold_rules.get(body) if spec.dtype in FLOATS else None,
            )
            last = self.all[-1] if self.all else None
            if last and last[0] == region[0] and last[3:] == region[3:]:
                self.all[-1] = last._replace(stop=region.stop)
            else:
                self.all.append(region)
        self._starts = [region.start for region in self.all]

    def cut(self, start: int, stop: int) -> list[Region]:
        """Return the regions in ``[start, stop)``, cut at its ends."""
        cut = []
        for index in range(bisect_right(self._starts, start) - 1, len(self.all)):
            region = self.all[index]
            if region.start >= stop:
                break
            cut.append(region._replace(start=max(region.start, start), stop=min(region.stop, stop)))
        return cut


class UpdatePart:
    """The part of one update in one region of a range.

    Args:
        place: Index of the update in the cohort.
        update: Update, with its weight and whether it has differences.
        region: The region.
        data: Bytes of the update for the region.
        old: Returns the model's bytes for a region; called only where they are needed.
        scale: Factor of the difference from the old values.
        not_finite: Called with the region, and with the index and the value of the first number
            that
        is infinite or NaN; None where the numbers are not checked.
        room: float64 memory for a block of old values, which all parts of a walk may share.
    """

    def __init__(
        self,
        place: int,
        update: UpdateSource,
        region: Region,
        data: memoryview,
        old: Callable[[Region], memoryview],
        scale: float,
        not_finite: Callable[[Region, int, float], None] | None,
        room: Array,
    ) -> None:
        self.place = place
        self.weight = region.weight_of(update)
        self.region = region
        self._sent = Elements(region.dtype, data)
        self._is_difference = update.params_type == "DIFF"
        if region.body:
            # Whether the params are weights or differences says nothing of other bodies.
            self._is_difference = region.fold_rule is not None and region.fold_rule.base == "zero"
        self._old = old
        self._scale = scale
        self._not_finite = not_finite
        self._room = room
        self._old_elements: Elements | None = None

    def integers(self) -> Array:
        """Return the new values of a region of integers. They wrap, as differences of them do."""
        sent = self._sent.native()
        if not self._is_difference:
            return sent
        whole: Array = self._old_values().native() + sent
        return whole

    def reals(self, block: slice, out: Array) -> None:
        """Write what is summed of a block into a float64 array of its length.

        That is the new values, or, under a rule of the workflow's, the differences that it sums.
        """
        if self.region.dtype == "BOOL":
            self._bools(block, out)
        elif not self._is_difference and self._scale == 1 and self.region.fold_rule is None:
            self.sent(block, out)
        else:
            self.differences(block, out)
            if self._scale != 1:
                np.multiply(out, self._scale, out=out)
            if self.region.fold_rule is None:
                np.add(out, self._old_block(block), out=out)

    def differences(self, block: slice, out: Array) -> None:
        """Write a block's differences from the old values, before scaling, into a float64 array."""
        self.sent(block, out)
        if not self._is_difference:
            np.subtract(out, self._old_block(block), out=out)

    def sent(self, block: slice, out: Array) -> None:
        """Write a block's numbers as they were sent into a float64 array."""
        self._sent.load(block, out)
        if self._not_finite is not None:
            index = first_not_finite(out, block.start)
            if index is not None:
                self._not_finite(self.region, index, float(out[index - block.start]))

    def _bools(self, block: slice, out: Array) -> None:
        self.sent(block, out)
        if self._is_difference:
            # A difference of bools selects those to flip; there is nothing to scale.
            np.not_equal(out, self._old_values().native()[block], out=out)

    def _old_block(self, block: slice) -> Array:
        old = self._room[: block.stop - block.start]
        self._old_values().load(block, old)
        return old

    def _old_values(self) -> Elements:
        if self._old_elements is None:
            self._old_elements = Elements(self.region.dtype, self._old(self.region))
        return self._old_elements
