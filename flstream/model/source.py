"""Sources and sinks: where the bytes of a model's body come from and where they go.

A source reads any range ``[start, stop)`` of its body into memory that it is given. One that has
its bytes in memory may show them in place, so that they are not copied on their way to a socket.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from flstream.model.layout import Layout

if TYPE_CHECKING:
    from flstream.model.digests import ChunkDigests

# Larger buffers are not kept: one is asked for when a whole model is read at once.
_KEPT_BYTES = 32 << 20

OnRange = Callable[[int, int], None]
"""Function called with a range of the body: the offset of its first byte, and that after its last.
"""


class Scratch:
    """A reusable buffer for reading ranges: fresh pages cost more than copying into them.

    Attributes:
        buffer: The memory kept between calls, as long as the longest range so far (32 MiB at most).
    """

    def __init__(self) -> None:
        self.buffer = bytearray()

    def take(self, size: int) -> memoryview:
        """Return a writable view of ``size`` bytes of any content, valid until the next call."""
        if size > _KEPT_BYTES:
            return memoryview(bytearray(size))
        if len(self.buffer) < size:
            self.buffer = bytearray(size)
        return memoryview(self.buffer)[:size]


class Extent(NamedTuple):
    """The place in an open file where a range of a body lies.

    Attributes:
        fd: Descriptor of the file, open as long as the source that gave it exists.
        offset: Offset in the file of the range's first byte.
        digests: xxh3-64 digests of the body's chunks that are known; senders add to them.
        immutable: Whether nobody writes into the file as long as the source exists, so that its
            pages may be handed to a socket. A run may write over a file of its own that nobody has
            open: see :func:`flstream.model.descriptors.keep_content`.
    """

    fd: int
    offset: int
    digests: ChunkDigests
    immutable: bool = False


class Source(Protocol):
    """A body whose bytes can be read range by range; one of your own may be offered as well.

    Whoever offers it reads it from one thread for each receiver, so ``read`` must allow that.
    """

    @property
    def layout(self) -> Layout:
        """Tensors of the body: names, dtypes, shapes and offsets."""
        ...

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Fill ``into`` with the bytes ``[start, stop)`` of the body, at least one.

        Raises:
            FlstreamError: They cannot be read.
        """
        ...


@runtime_checkable
class InMemory(Protocol):
    """What a source can do that has its bytes in memory."""

    def in_place(self, start: int, stop: int) -> Sequence[memoryview] | None:
        """Return the bytes ``[start, stop)`` where they lie, as consecutive views.

        Returns:
            The views; None if some of the bytes lie elsewhere, or in another order.
        """
        ...


@runtime_checkable
class Watched(Protocol):
    """What a source can do that finds out whether its bytes are still those that were offered."""

    def changed(self) -> str | None:
        """Return a sentence on what has changed since the source was made; None for nothing."""
        ...


def change_of(source: Source) -> str | None:
    """Return a sentence on what of a source is known to have changed; None if nothing is."""
    return source.changed() if isinstance(source, Watched) else None


def views_of(source: Source, start: int, stop: int, scratch: Scratch) -> Sequence[memoryview]:
    """Return bytes of a source as consecutive views: in place, or else read into ``scratch``.

    Raises:
        FlstreamError: They cannot be read.
    """
    if isinstance(source, InMemory) and (views := source.in_place(start, stop)) is not None:
        return views
    view = scratch.take(stop - start)
    source.read(start, stop, view)
    return [view]


class Sink(Protocol):
    """A body whose bytes can be written range by range."""

    @property
    def layout(self) -> Layout:
        """Tensors of the body: names, dtypes, shapes and offsets."""
        ...

    @property
    def random_access(self) -> bool:
        """Whether ranges may be written in any order; otherwise only from front to back."""
        ...

    @property
    def resumed(self) -> bool:
        """Whether the sink holds bytes of an earlier attempt, to be verified by their digests."""
        ...

    def written(self, start: int, stop: int) -> Sequence[memoryview]:
        """Return what a resumed sink holds at ``[start, stop)``: fewer bytes where it ends before.

        The views are valid until the next call of any method.
        """
        ...

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        """Return writable views of ``stop - start`` bytes for the bytes ``[start, stop)``.

        Nothing counts as written before :meth:`commit`.
        """
        ...

    def commit(self, start: int, stop: int) -> None:
        """Take over what was written into the views of ``[start, stop)``, the last requested."""
        ...
