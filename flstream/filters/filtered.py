"""A source derived from another: a model as filters leave it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator

import numpy as np

from flstream.aggregation.elements import Elements, unit
from flstream.filters.block import BLOCK, Values, is_filtered
from flstream.filters.numbers import block_range, load_block
from flstream.model.body import Scratch, Source, changed_through
from flstream.model.copy import scatter
from flstream.model.header import TensorInfo
from flstream.model.layout import Layout


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

    random_access = True
    lendable = False
    extent = None
    deliver = None

    def __init__(
        self, source: Source, layout: Layout, values: Values | None, base: Source | None
    ) -> None:
        self.layout = layout
        self._source = source
        self._values = values
        self._base = base
        self._reading = threading.Lock()
        self._scratch = Scratch()
        self._block: tuple[str, int] | None = None
        self._data = b""

    def views(self, start: int, stop: int, scratch: Scratch) -> list[memoryview]:
        """Return the bytes ``[start, stop)``, computed into ``scratch``.

        Raises:
            ClientError: A filter returned something else than numbers.
        """
        room = scratch.take(stop - start)
        with self._reading:
            for spec in self.layout.overlapping(start, stop):
                first, last = max(start, spec.start), min(stop, spec.stop)
                self._fill(spec, first - spec.start, room[first - start : last - start])
        return [room]

    @property
    def changed(self) -> Callable[[int, int], str | None] | None:
        """Function from a range to a sentence on what of the unfiltered body has changed since."""
        return changed_through(self._source, self._origins)

    def _origins(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield where the bytes of a range come from, a range of the unfiltered body for each."""
        for spec in self.layout.overlapping(start, stop):
            moved = self._source.layout.by_name[spec.name].start - spec.start
            yield max(start, spec.start) + moved, min(stop, spec.stop) + moved

    def _fill(self, spec: TensorInfo, offset: int, room: memoryview) -> None:
        """Put a tensor's bytes from an offset in it on into a view."""
        if self._values is None or not is_filtered(spec):
            first = self._source.layout.by_name[spec.name].start + offset
            scatter(self._source.views(first, first + len(room), self._scratch), [room])
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
