"""Groups of whole tensors, such as a LoRA pair or a layer, that code combines in one piece.

Groups are combined one by one, before the walk. What comes of them waits in a file, from which the
walk copies these tensors into the next model. So memory is that of the largest group, whatever the
model's size; updates have to be in files or in memory, since they are not read from front to back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flstream.aggregation.elements import Array, blocks
from flstream.aggregation.fold_rule import GroupUpdate, TensorFold, TensorGroup
from flstream.aggregation.methods import OwnRule, floats_of, user_code
from flstream.aggregation.regions import Region, element_at
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.update import CollectedUpdate
from flstream.aggregation.update_set import UpdateSet
from flstream.aggregation.walk import OnRange
from flstream.errors import AggregationError, MisfitError
from flstream.model.checkpoint import FileSink
from flstream.model.composed import ComposedSource
from flstream.model.dtypes import FLOATS, first_not_finite, numbers_in, quietly, stored, unit
from flstream.model.layout import Layout, TensorInfo, TypeRun
from flstream.model.source import Scratch, Source
from flstream.text import brief_names
from flstream.units import format_bytes

REALS = FLOATS - {"C64"}
"""Types of the tensors that groups may have."""


def own_tensor_fold(rule: AggregationRule) -> TensorFold:
    """Make a user's own rule anew, and return its code.

    Raises:
        AggregationError: It cannot be made, or weighs updates, too.
    """
    own = OwnRule(rule.method, rule.args)
    if own.weighs:
        raise AggregationError(
            f"{own.name} has both weigh and combine, and whole tensors are combined before "
            "updates are weighed; leave out one of the two"
        )
    return TensorFold(own.name, own.where, own.rule.groups, own.rule.combine)


def named_groups(
    code: TensorFold, layout: Layout, rule: AggregationRule
) -> dict[str, list[TensorInfo]]:
    """Return the tensors of each group, by name of the group.

    Args:
        code: Code that combines groups.
        layout: Layout of the model, with the bodies beside it.
        rule: Rule of the fold.

    Raises:
        UsageError: A pattern of the rule is found in no name.
        AggregationError: The code failed, or its groups overlap or name other tensors.
    """
    selected = rule.selected(layout)
    floats = [spec for spec in layout.tensors if spec.name in selected and spec.dtype in REALS]
    names = [spec.name for spec in floats if spec.nbytes]
    what = f"{code.name}.groups"
    if code.groups is None:
        return {name: [layout.by_name[name]] for name in names}
    with user_code(what, code.where):
        returned = code.groups(list(names))
    if not isinstance(returned, Mapping):
        raise AggregationError(
            f"{what} returned a {type(returned).__name__}; return a dict of lists of tensors' "
            "names by name of the group"
        )
    known, owner = set(names), dict[str, str]()
    groups: dict[str, list[TensorInfo]] = {}
    for group, listed in returned.items():
        is_list = isinstance(listed, Iterable) and not isinstance(listed, str)
        members = list(listed) if is_list else []  # an iterator gives its names once
        if not isinstance(group, str) or not members:
            raise AggregationError(
                f"{what} returned {listed!r} for the group {group!r}; return a list of "
                "tensors' names for each name of a group"
            )
        for name in members:
            if not isinstance(name, str) or name not in known:
                raise AggregationError(
                    f"{what} put the tensor {name!r} into the group {group!r}, and there is no "
                    "such tensor of real floats that is aggregated; take names of those that "
                    "it was given"
                )
            if name in owner:
                raise AggregationError(
                    f"{what} put the tensor {name!r} into the groups {owner[name]!r} and "
                    f"{group!r}; put each tensor into one group, once"
                )
            owner[name] = group
        groups[group] = [layout.by_name[name] for name in members]
    return groups


def _combined(
    code: TensorFold,
    group: TensorGroup,
    updates: Sequence[GroupUpdate],
    specs: Sequence[TensorInfo],
) -> dict[str, Array]:
    """Combine a group; return its tensors in float64 by name.

    Raises:
        AggregationError: The code failed, or returned anything else.
    """
    what = f"{code.name if code.groups is None else f'{code.name}.combine'}"
    with user_code(f"{what} (group {group.name})", code.where):
        returned = code.combine(group, updates)
    if code.groups is None and not isinstance(returned, Mapping):
        returned = {group.name: returned}
    names = {spec.name for spec in specs}
    if not isinstance(returned, Mapping) or returned.keys() != names:
        kind = f"a {type(returned).__name__}"
        if isinstance(returned, Mapping):
            kind = f"tensors {brief_names(sorted(map(str, returned)))}"
        raise AggregationError(
            f"{what} returned {kind} for the group {group.name!r}; return a dict with arrays "
            f"for {brief_names(sorted(names))}"
        )
    return {
        spec.name: floats_of(what, returned[spec.name], spec.shape, spec.name) for spec in specs
    }


class CombinedGroups(NamedTuple):
    """Result of combining groups.

    Attributes:
        base: The model that sites started from, with the combined tensors in place of its own.
        rule: Rule of the walk, which leaves these tensors as they are in the base.
        updates: Updates of which the walk folds the other tensors; none where all are combined.
        numbers: Numbers that the code has logged, by key.
    """

    base: Source
    rule: AggregationRule
    updates: Sequence[CollectedUpdate]
    numbers: Mapping[str, float]


@contextmanager
def combined_groups(
    base: Source,
    updates: Sequence[CollectedUpdate],
    rule: AggregationRule,
    code: TensorFold,
    path: Path,
    step: int,
    memory_budget: int,
    on_range: OnRange,
) -> Iterator[CombinedGroups]:
    """Combine groups of tensors one by one, and keep the results in a file until the block ends.

    Args:
        base: Model that the sites started from.
        updates: Updates in the fold's order, which can be read in any order.
        rule: Rule of the fold.
        code: Code that combines groups.
        path: Path of the file, which never gets that name.
        step: Bytes that are read at a time.
        memory_budget: Most bytes that a group's tensors may take.
        on_range: Called after each tensor of an update; an error that it raises ends the work.

    Raises:
        UpdateRefusedError: An update does not fit the model or is not finite.
        MisfitError: A group takes more than the budget.
        AggregationError: The code failed, or returned something else.
    """
    layout, selected = base.layout, rule.selected(base.layout)
    groups = named_groups(code, layout, rule)
    names = {spec.name for specs in groups.values() for spec in specs}
    reader = _GroupReader(base, updates, rule, step, on_range)
    for name, specs in groups.items():
        reader.check_room(code, name, specs, memory_budget)
    numbers: Counter[str] = Counter()
    with FileSink(path, layout.subset(names, ()), durable=False) as sink:
        for name, specs in groups.items():
            members = reader.updates(specs)
            old = {spec.name: reader.base(spec) for spec in specs}
            new = old
            if members:  # what nobody has sent stays
                group = TensorGroup(name, old, numbers)
                new = _combined(code, group, members, specs)
            for spec in specs:
                _write(code, sink, layout, spec, new[spec.name], rule)
            del members, old, new
        places = {
            spec.name: (sink, sink.layout.by_name[spec.name])
            if spec.name in names
            else (base, spec)
            for spec in layout.tensors
        }
        rest = updates if names < selected else ()
        yield CombinedGroups(
            ComposedSource(layout, places), replace(rule, combined=frozenset(names)), rest, numbers
        )
    for update in updates:
        update.confirm()


class _GroupReader:
    """Reader of whole tensors of updates."""

    def __init__(
        self,
        base: Source,
        updates: Sequence[CollectedUpdate],
        rule: AggregationRule,
        step: int,
        on_range: OnRange,
    ) -> None:
        self._cohort = UpdateSet(base, updates, rule, step, checks_finite=True)
        self._carried = [reading.carried.by_name for reading in self._cohort.readings]
        self._rule, self._on_range, self._scratch = rule, on_range, Scratch()

    def check_room(
        self, code: TensorFold, name: str, specs: Sequence[TensorInfo], budget: int
    ) -> None:
        """Refuse a group that takes more memory than there is for it."""
        # With the model's and the result.
        copies = {s.name: 2 + sum(s.name in names for names in self._carried) for s in specs}
        need = sum(8 * spec.elements * copies[spec.name] for spec in specs)
        if need > budget:
            raise MisfitError(
                f"the group {name!r} of {code.name} takes {need:,} bytes ({format_bytes(need)}) in "
                f"float64, for {len(self._carried)} updates, the model and the result, and "
                f"aggregation.memory_budget is {format_bytes(budget)}; raise it, or make smaller "
                "groups"
            )

    def base(self, spec: TensorInfo) -> Array:
        """Return a tensor of the model."""
        values = np.empty(spec.elements)
        for region, out in self._regions(spec, values):
            self._cohort.old.begin(region.start, region.stop)
            for block in blocks(region.numbers):
                out[block] = self._cohort.old.block(region, block)
        return values.reshape(spec.shape)

    def updates(self, specs: Sequence[TensorInfo]) -> list[GroupUpdate]:
        """Return the tensors of a group in the updates that have any of them."""
        members = []
        for place, (reading, names) in enumerate(
            zip(self._cohort.readings, self._carried, strict=True)
        ):
            if own := [spec for spec in specs if spec.name in names]:
                tensors = {spec.name: self._new(place, spec) for spec in own}
                members.append(GroupUpdate(reading.update.site, reading.weight, tensors))
        return members

    def _new(self, place: int, spec: TensorInfo) -> Array:
        """Return the new values of an update's tensor."""
        values = np.empty(spec.elements)
        for region, out in self._regions(spec, values):
            part = self._cohort.part(place, region, self._scratch)
            for block in blocks(region.numbers):
                part.reals(block, out[block])
        self._on_range(0)
        return values.reshape(spec.shape)

    def _regions(self, spec: TensorInfo, values: Array) -> Iterator[tuple[Region, Array]]:
        """Yield a tensor's regions, a step long at most, each with its part of the values."""
        size, body = unit(spec.dtype), self._rule.body_of(spec.name)
        for start in range(spec.start, spec.stop, self._cohort.step):
            stop = min(start + self._cohort.step, spec.stop)
            out = values[(start - spec.start) // size : (stop - spec.start) // size]
            yield Region(spec.dtype, start, stop, carriers=0, before=0.0, body=body), out


@quietly
def _write(
    code: TensorFold,
    sink: FileSink,
    layout: Layout,
    spec: TensorInfo,
    values: Array,
    rule: AggregationRule,
) -> None:
    """Write a combined tensor to the file, rounded once to its type."""
    flat, start = values.reshape(-1), sink.layout.by_name[spec.name].start
    for block in blocks(len(flat)):
        data = memoryview(stored(spec.dtype, flat[block]))
        if rule.on_nonfinite == "reject":
            bad = first_not_finite(numbers_in(spec.dtype, data), block.start)
            if bad is not None:
                at = element_at(layout, TypeRun(spec.dtype, spec.start, spec.stop), bad)
                raise AggregationError(
                    f"{code.name} returned {flat[bad]:g} for {at}, which is not finite in the "
                    f"tensor's type {spec.dtype}; mend the code"
                )
        sink.write(start + block.start * unit(spec.dtype), data)
