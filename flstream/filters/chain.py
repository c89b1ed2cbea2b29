"""The filters of one direction, one after another, and the model as they leave it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Sequence, Set
from typing import Any

import numpy as np

from flstream.aggregation.elements import Elements, unit
from flstream.errors import UsageError
from flstream.filters.block import BLOCK, BlockFilter, Direction, Passage, Values, is_filtered
from flstream.filters.gaussian import GaussianFilter
from flstream.filters.numbers import (
    FilteredValues,
    RemainingValues,
    SourceValues,
    block_range,
    load_block,
)
from flstream.filters.percentile import PercentileFilter
from flstream.filters.svt import SVTFilter
from flstream.job.code import make
from flstream.job.filters import GAUSSIAN, PERCENTILE, SVT, FilterSpec
from flstream.model.header import TensorInfo
from flstream.model.layout import Layout
from flstream.model.source import Source

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
    made: BlockFilter = make(spec.type, spec.args)
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
                f"filters.{direction}[{place}].args.exclude_vars: {what} no tensor's name; "
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
            f"filters.{direction}[{place}].args.exclude_vars leaves no tensor of the model; "
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


class FilteredSource:
    """A body with a part of another's tensors, and with filtered numbers.

    It holds a block at a time. Ranges may be read in any order, and by several threads, which wait
    for each other.

    Args:
        source: The unfiltered body.
        layout: Layout of what is left of it.
        values: Filtered numbers, which are differences from ``base`` if that is given; None where
            no filter changes numbers.
        base: Body that the differences are added to; None to take the numbers as they are.

    Attributes:
        layout: Tensors of the body.
    """

    def __init__(
        self, source: Source, layout: Layout, values: Values | None, base: Source | None
    ) -> None:
        self.layout = layout
        self._source = source
        self._values = values
        self._base = base
        self._reading = threading.Lock()
        self._block: tuple[str, int] | None = None
        self._data = b""

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Compute the bytes ``[start, stop)``.

        Raises:
            ClientError: A filter returned something else than numbers.
        """
        with self._reading:
            for spec in self.layout.overlapping(start, stop):
                first, last = max(start, spec.start), min(stop, spec.stop)
                self._fill(spec, first - spec.start, into[first - start : last - start])

    def _fill(self, spec: TensorInfo, offset: int, room: memoryview) -> None:
        """Put a tensor's bytes from an offset in it on into a view."""
        if self._values is None or not is_filtered(spec):
            first = self._source.layout.by_name[spec.name].start + offset
            self._source.read(first, first + len(room), room)
            return
        size = BLOCK * unit(spec.dtype)
        while len(room):
            index, inside = divmod(offset, size)
            data = self._encoded(spec, index)[inside : inside + len(room)]
            room[: len(data)] = data
            room, offset = room[len(data) :], offset + len(data)

    def _encoded(self, spec: TensorInfo, index: int) -> bytes:
        """Return the bytes of a filtered block; the last one is kept, as the next chunk may go on.

        The sum is rounded once, to the tensor's own dtype.
        """
        if self._block != (spec.name, index):
            assert self._values is not None
            own = self._source.layout.by_name[spec.name]
            numbers = self._values.block(own, index)
            with np.errstate(over="ignore", invalid="ignore"):
                if self._base is not None:
                    numbers = numbers + load_block(self._base, own, index)
                start, stop = block_range(spec, index)
                data = bytearray(stop - start)
                Elements(spec.dtype, memoryview(data)).store(slice(0, len(numbers)), numbers)
            self._block, self._data = (spec.name, index), bytes(data)
        return self._data


def layout_of(layout: Layout, names: Collection[str]) -> Layout:
    """Return the layout of a part of the tensors, in the same order, with their aliases."""
    specs: list[TensorInfo] = []
    for spec in layout.tensors:
        if spec.name in names:
            start = specs[-1].stop if specs else 0
            specs.append(spec._replace(start=start, stop=start + spec.nbytes))
    aliases = {alias: name for alias, name in layout.aliases.items() if name in names}
    return Layout(specs, aliases)
