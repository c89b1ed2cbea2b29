"""Sources and sinks: where the bytes of a model's body come from and where they go.

Both hand out lists of memoryviews for a range ``[start, stop)`` of the body. The kernel gathers
from a source's views and scatters into a sink's, so no byte is copied in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flstream.model.layout import Layout

# A larger buffer is not kept: it belongs to one read of a whole model.
_KEPT_BYTES = 32 << 20


class Scratch:
    """A buffer that a reader keeps from range to range, since fresh pages cost more than bytes.

    Attributes:
        buffer: what is kept.
    """

    def __init__(self) -> None:
        self.buffer = bytearray()

    def take(self, size: int) -> memoryview:
        """A view of ``size`` bytes of any content, which holds until the next call."""
        if size > _KEPT_BYTES:
            return memoryview(bytearray(size))
        if len(self.buffer) < size:
            self.buffer = bytearray(size)
        return memoryview(self.buffer)[:size]


class Source(Protocol):
    """Something whose bytes can be read range by range."""

    @property
    def layout(self) -> Layout:
        """What the bytes mean."""
        ...

    def views(self, start: int, stop: int, scratch: Scratch) -> Sequence[memoryview]:
        """The bytes ``[start, stop)`` of the body.

        A source that does not have them in memory puts them into ``scratch``; the views then hold
        until that is used again.
        """
        ...


class Sink(Protocol):
    """Something that takes the bytes of a body range by range."""

    @property
    def layout(self) -> Layout:
        """What the bytes mean."""
        ...

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        """Where to write the bytes ``[start, stop)``; nothing counts before :meth:`commit`."""
        ...

    def commit(self, start: int, stop: int) -> None:
        """Take over what was written into the views of this range, which was just asked for."""
        ...
