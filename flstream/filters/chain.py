"""Filters of one direction, one after another, and the model that they return."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence, Set

import numpy as np

from flstream.codecs.blocks import Blockwise
from flstream.errors import ClientError, FlstreamError, UsageError
from flstream.filters.block import BLOCK, BlockFilter, Direction, Passage, Values, block_at
from flstream.filters.built_in import gaussian_noise, percentile_privacy, svt_privacy
from flstream.job.code import make
from flstream.job.filters import GAUSSIAN, PERCENTILE, SVT, FilterSection
from flstream.model.dtypes import FLOATS, load, numbers_in, quietly, store, unit
from flstream.model.layout import Layout, TensorInfo
from flstream.model.random_numbers import Floats
from flstream.model.source import Scratch, Source, view_of

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
    """Return the model that filters make of a model, a source computed range by range.

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
                tensors = [tensor for tensor in values.tensors if tensor.name in layout.by_name]
                values = values._replace(tensors=tensors)
            continue
        if values is None:
            # The base need not have tensors that earlier filters left out.
            values = _unfiltered(source, base, layout.by_name)
        apply: BlockFilter = (
            BUILT_IN[spec.type](values, passage, place, **dict(spec.args))
            if spec.type in BUILT_IN
            else make(spec.type, dict(spec.args))
        )
        values = _through(apply, values, passage, place, spec.name)
    changed = [] if values is None else values.tensors
    block_bytes = {tensor.name: BLOCK * unit(tensor.dtype) for tensor in changed}

    @quietly
    def fill(spec: TensorInfo, index: int, out: memoryview) -> None:
        assert values is not None
        numbers = values.block(spec, index)
        if base is not None:
            numbers = numbers + _load_block(base, spec, index)
        store(numbers, numbers_in(spec.dtype, out))  # rounds the sum once

    return Blockwise(source, layout, block_bytes, fill)


def _load_block(source: Source, spec: TensorInfo, index: int) -> Floats:
    """Read a block of a body's tensor as float64 numbers."""
    size = BLOCK * unit(spec.dtype)
    first = source.layout.by_name[spec.name].start + index * size
    stop = first + min(size, spec.nbytes - index * size)
    sent = numbers_in(spec.dtype, view_of(source, first, stop, Scratch()))
    numbers = np.empty(len(sent))
    load(sent, numbers)
    return numbers


def _unfiltered(source: Source, base: Source | None, names: Container[str]) -> Values:
    """Return the named numbers of a body, or their differences from another one."""
    tensors = [
        spec for spec in source.layout.tensors if spec.dtype in FLOATS and spec.name in names
    ]
    for spec in tensors:
        if base is not None and spec.name not in base.layout.by_name:
            raise ClientError(
                f"tensor {spec.name!r} of the update is not part of the model, so its change "
                "cannot be filtered; leave it out"
            )

    def block(spec: TensorInfo, index: int) -> Floats:
        numbers = _load_block(source, spec, index)
        if base is not None:
            numbers -= _load_block(base, spec, index)
        return numbers

    return Values(tensors, block)


def _through(apply: BlockFilter, values: Values, passage: Passage, place: int, name: str) -> Values:
    """Return the numbers that the filter at a place makes of others.

    A number that is not finite stays as it is: a filter that bounds numbers would hide it from the
    server, which refuses such an update.
    """

    def block(spec: TensorInfo, index: int) -> Floats:
        numbers = values.block(spec, index)
        strange = np.flatnonzero(~np.isfinite(numbers))
        before, count = numbers[strange], len(numbers)
        try:
            returned = apply(numbers, block_at(spec, index, passage, place))
        except FlstreamError:
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # it may be the user's code
            raise ClientError(
                f"the filter {name} raised {type(error).__name__} at tensor {spec.name!r}: "
                f"{error}; mend the filter"
            ) from error
        if not isinstance(returned, np.ndarray) or returned.shape != (count,):
            shape = list(np.shape(returned))
            raise ClientError(
                f"the filter {name} returned {type(returned).__name__} of shape {shape} for a "
                f"block of {count} numbers of tensor {spec.name!r}; return as many numbers"
            )
        if np.iscomplexobj(returned):
            raise ClientError(
                f"the filter {name} returned complex numbers for a block of tensor "
                f"{spec.name!r}; return floats"
            )
        floats: Floats = np.ascontiguousarray(returned, np.float64)
        if len(strange):
            floats = floats.copy()
            floats[strange] = before
        return floats

    return Values(values.tensors, block)


def remaining(layout: Layout, specs: Sequence[FilterSection], direction: Direction) -> Layout:
    """Return the layout of the tensors of a whole model that filters let pass.

    Args:
        layout: Layout of the model.
        specs: The filters.
        direction: Their direction, for messages.

    Raises:
        UsageError: The model lacks a tensor that a filter leaves out, or none is left; the message
            has the filter's key.
    """
    rest = layout
    for place, spec in enumerate(specs):
        if spec.changes_numbers:
            continue
        excluded = dict(spec.args)["exclude_vars"]
        names = layout.names
        matching = _matching(layout, spec)
        listed = () if isinstance(excluded, str) else excluded
        unknown = [name for name in listed if name not in names]
        if unknown or not matching:
            what = f"{unknown[0]!r} is" if unknown else f"the pattern {excluded!r} is found in"
            raise UsageError(
                f"filters.{direction}[{place}].args.exclude_vars: {what} no tensor's name; "
                "flstream inspect lists the names"
            )
        rest = _without(rest, matching, direction, place)
    return rest


def _without(layout: Layout, names: Set[str], direction: Direction, place: int) -> Layout:
    """Return a layout without the tensors that a filter leaves out, which are not all."""
    rest = layout.subset(layout.by_name.keys() - names)
    if not rest.tensors:
        raise UsageError(
            f"filters.{direction}[{place}].args.exclude_vars leaves no tensor of the model; "
            "exclude fewer"
        )
    return rest


def _matching(layout: Layout, spec: FilterSection) -> set[str]:
    """Return the names of the tensors that a filter leaves out."""
    excluded: Sequence[str] | str = dict(spec.args)["exclude_vars"]
    own = {name: name for name in layout.by_name} | layout.aliases
    if isinstance(excluded, str):
        return {name for alias, name in own.items() if re.search(excluded, alias)}
    return {own[name] for name in excluded if name in own}
