"""Regions: ranges of the body for which the same updates have elements of one type."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from flstream.aggregation.elements import FLOATS, SCALES, unit
from flstream.aggregation.fold_rule import FoldRule
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
