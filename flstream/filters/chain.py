"""The filters of one direction, one after another, and the model as they leave it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set

from flstream.codecs.blocks import Blockwise
from flstream.errors import UsageError
from flstream.filters.block import BLOCK, BlockFilter, Direction, Passage, Values
from flstream.filters.built_in import gaussian_noise, percentile_privacy, svt_privacy
from flstream.filters.numbers import filtered_values, load_block, source_values
from flstream.job.code import make
from flstream.job.filters import GAUSSIAN, PERCENTILE, SVT, FilterSection
from flstream.model.dtypes import numbers_in, quietly, store, unit
from flstream.model.header import TensorInfo
from flstream.model.layout import Layout
from flstream.model.source import Source

BUILT_IN: Mapping[str, Callable[..., BlockFilter]] = {
    PERCENTILE: percentile_privacy,
    SVT: svt_privacy,
    GAUSSIAN: gaussian_noise,
}
"""Built-in filters that change numbers, by name."""


@quietly
def filtered(
    source: Source, specs: Sequence[FilterSection], passage: Passage, base: Source | None = None
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
            if values is not None:
                left = [each for each in values.tensors if each.name in layout.by_name]
                values = values._replace(tensors=left)
            continue
        if values is None:
            # What was left out before need not be in the base.
            values = source_values(source, base, layout.by_name)
        apply: BlockFilter = (
            BUILT_IN[spec.type](values, passage, place, **dict(spec.args))
            if spec.type in BUILT_IN
            else make(spec.type, dict(spec.args))
        )
        values = filtered_values(values, apply, passage, place, spec.name)
    changed = [] if values is None else values.tensors
    block_bytes = {each.name: BLOCK * unit(each.dtype) for each in changed}

    @quietly
    def fill(spec: TensorInfo, index: int, out: memoryview) -> None:
        assert values is not None
        numbers = values.block(spec, index)
        if base is not None:
            numbers = numbers + load_block(base, spec, index)
        store(numbers, numbers_in(spec.dtype, out))  # rounds the sum once

    return Blockwise(source, layout, block_bytes, fill)


def remaining(layout: Layout, specs: Sequence[FilterSection], direction: Direction) -> Layout:
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
        given = dict(spec.args)["exclude_vars"]
        names = layout.names
        found = _matching(layout, spec)
        unknown = [] if isinstance(given, str) else [each for each in given if each not in names]
        if unknown or not found:
            what = f"{unknown[0]!r} is" if unknown else f"the pattern {given!r} is found in"
            raise UsageError(
                f"filters.{direction}[{place}].args.exclude_vars: {what} no tensor's name; "
                "flstream inspect lists the names"
            )
        left = _without(left, found, direction, place)
    return left


def _without(layout: Layout, names: Set[str], direction: Direction, place: int) -> Layout:
    """Return a layout without what a filter leaves out, which must not be all."""
    left = layout.subset(layout.by_name.keys() - names)
    if not left.tensors:
        raise UsageError(
            f"filters.{direction}[{place}].args.exclude_vars leaves no tensor of the model; "
            "exclude fewer"
        )
    return left


def _matching(layout: Layout, spec: FilterSection) -> set[str]:
    """Return the names of the tensors that a filter leaves out."""
    given: Sequence[str] | str = dict(spec.args)["exclude_vars"]
    own = {name: name for name in layout.by_name} | layout.aliases
    if isinstance(given, str):
        return {name for each, name in own.items() if re.search(given, each)}
    return {own[each] for each in given if each in own}
