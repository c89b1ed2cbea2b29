"""The filters of one direction, one after another."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Set
from typing import Any

from flstream.errors import UsageError
from flstream.filters.block import BlockFilter, Direction, Passage, Values
from flstream.filters.filtered import FilteredSource, layout_of
from flstream.filters.gaussian import GaussianFilter
from flstream.filters.numbers import FilteredValues, RemainingValues, SourceValues
from flstream.filters.percentile import PercentileFilter
from flstream.filters.svt import SVTFilter
from flstream.job.filter_sections import GAUSSIAN, PERCENTILE, SVT
from flstream.job.filters import FilterSpec
from flstream.job.own_code import load_own
from flstream.model.body import Source
from flstream.model.layout import Layout

Prepare = Callable[[Values, Passage, int, dict[str, Any]], BlockFilter]
"""Function from a model's numbers, its passage, the filter's place and arguments to the filter."""

BUILT_IN: dict[str, Prepare] = {
    PERCENTILE: lambda values, passage, place, args: PercentileFilter.of(
        values, passage, args["percentile"], args["gamma"]
    ),
    SVT: lambda values, passage, place, args: SVTFilter.of(values, passage, place, **args),
    GAUSSIAN: lambda values, passage, place, args: GaussianFilter(**args),
}
"""Built-in filters that change numbers, by name."""


def filtered(
    source: Source, specs: Sequence[FilterSpec], passage: Passage, base: Source | None = None
) -> Source:
    """Return a model as filters leave it: a source that is computed range by range.

    Filters that have to know all numbers before the first, as a percentile does, read the model
    here, in a few passes.

    Args:
        source: The model, with random access.
        specs: The filters, in order.
        passage: Site, round and direction.
        base: Model whose differences from the source are filtered, with random access; None to
            filter the numbers of the source as they are.

    Raises:
        UsageError: No tensor would be left.
        ClientError: The base lacks a tensor, or a filter of the user's own returned no numbers.
    """
    if not specs:
        return source
    layout = source.layout
    values: Values | None = None
    for place, spec in enumerate(specs):
        if not spec.changes_numbers:
            layout = _without(layout, _matching(layout, spec), passage.direction, place)
            values = None if values is None else RemainingValues(values, layout.by_name.keys())
            continue
        if values is None:
            # What was left out before need not be in the base.
            values = SourceValues(source, base, layout.by_name.keys())
        apply = _made(spec, values, passage, place)
        values = FilteredValues(values, apply, passage, place, spec.name)
    return FilteredSource(source, layout, values, base)


def _made(spec: FilterSpec, values: Values, passage: Passage, place: int) -> BlockFilter:
    if spec.type in BUILT_IN:
        return BUILT_IN[spec.type](values, passage, place, spec.args)
    made: BlockFilter = load_own(spec.type, spec.args)
    return made


def remaining(layout: Layout, specs: Sequence[FilterSpec], direction: Direction) -> Layout:
    """Return the layout of what filters leave of a whole model.

    Args:
        layout: Layout of the model.
        specs: The filters.
        direction: Their direction, for messages.

    Raises:
        UsageError: The model lacks a tensor that a filter leaves out, or none is left; the message
            has the filter's key.
    """
    left = layout
    for place, spec in enumerate(specs):
        if spec.changes_numbers:
            continue
        given = spec.args["exclude_vars"]
        names = layout.names
        found = _matching(layout, spec)
        unknown = [] if isinstance(given, str) else [each for each in given if each not in names]
        if unknown or not found:
            what = f"{unknown[0]!r} is" if unknown else f"the pattern {given!r} is found in"
            raise UsageError(
                f"filters.{direction}[{place}].exclude_vars: {what} no tensor's name; "
                "flstream inspect lists the names"
            )
        left = _without(left, found, direction, place)
    return left


def _without(layout: Layout, names: Set[str], direction: Direction, place: int) -> Layout:
    """Return a layout without what a filter leaves out.

    Raises:
        UsageError: It leaves out all; the message has its key.
    """
    left = layout_of(layout, layout.by_name.keys() - names)
    if not left.tensors:
        raise UsageError(
            f"filters.{direction}[{place}].exclude_vars leaves no tensor of the model; "
            "exclude fewer"
        )
    return left


def _matching(layout: Layout, spec: FilterSpec) -> set[str]:
    """Return the names of the tensors that a filter leaves out."""
    given: Sequence[str] | str = spec.args["exclude_vars"]
    own = {name: name for name in layout.by_name} | layout.aliases
    if isinstance(given, str):
        return {name for each, name in own.items() if re.search(given, each)}
    return {own[each] for each in given if each in own}
