"""Bodies made of other bodies, a tensor's block at a time, for codecs and filters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from flstream.model.layout import Layout, TensorInfo
from flstream.model.source import Scratch, Source, change_of

Fill = Callable[[TensorInfo, int, memoryview], None]
"""Function from a tensor of the layout, a block's index in it, and the block's bytes to write."""


class Blockwise:
    """Body that is made of another body.

    Ranges may be read in any order in which the other body may be. Threads wait for each other. The
    last block is kept, since the next range may begin in it.

    Args:
        source: The other body, which the tensors that are not made are copied from.
        layout: Layout of the body.
        block_bytes: Length of a block of each tensor that is made; its last one may be shorter.
        fill: Makes a block.

    Attributes:
        layout: Tensors of the body.
    """

    def __init__(
        self, source: Source, layout: Layout, block_bytes: Mapping[str, int], fill: Fill
    ) -> None:
        self.layout = layout
        self._source = source
        self._block_bytes = block_bytes
        self._fill = fill
        self._reading = threading.Lock()
        self._scratch = Scratch()
        self._block: tuple[str, int] | None = None
        self._data = memoryview(b"")

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Make the bytes ``[start, stop)``."""
        with self._reading:
            for spec in self.layout.overlapping(start, stop):
                first, last = max(start, spec.start), min(stop, spec.stop)
                room = into[first - start : last - start]
                if spec.name in self._block_bytes:
                    self._make(spec, first - spec.start, room)
                else:
                    moved = self._source.layout.by_name[spec.name].start - spec.start
                    self._source.read(first + moved, last + moved, room)

    def changed(self) -> str | None:
        """Return a sentence on a change of the other body."""
        return change_of(self._source)

    def _make(self, spec: TensorInfo, offset: int, room: memoryview) -> None:
        size = self._block_bytes[spec.name]
        while len(room):
            index, inside = divmod(offset, size)
            length = min(size, spec.nbytes - index * size)
            count = min(length - inside, len(room))
            if count == length:
                self._fill(spec, index, room[:count])
            else:
                if self._block != (spec.name, index):
                    self._block, self._data = None, self._scratch.take(length)
                    self._fill(spec, index, self._data)
                    self._block = spec.name, index
                room[:count] = self._data[inside : inside + count]
            room, offset = room[count:], offset + count
