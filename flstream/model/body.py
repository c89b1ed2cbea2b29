"""Sources and sinks: where the bytes of a model's body come from and where they go.

Both hand out lists of memoryviews for a range ``[start, stop)`` of the body. The kernel gathers
from a source's views and scatters into a sink's, so no byte is copied in Python. What else a source
or a sink can do is stated by attributes of its protocol, so that no caller depends on its class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

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
    """A body whose bytes can be read range by range.

    ``extent``, ``deliver`` and ``changed`` are optional capabilities, None where a source lacks
    them.
    """

    @property
    def layout(self) -> Layout:
        """Tensors of the body: names, dtypes, shapes and offsets."""
        ...

    @property
    def random_access(self) -> bool:
        """Whether ranges may be read in any order and repeatedly.

        Otherwise the body is read once, from front to back.
        """
        ...

    @property
    def lendable(self) -> bool:
        """Whether views outside the scratch are memory that no one changes while it is referenced.

        The kernel may then be lent their pages instead of a copy.
        """
        ...

    @property
    def extent(self) -> Callable[[int, int], Extent] | None:
        """Function from ``(start, stop)`` to the place of these bytes in a file.

        It raises a CheckpointError if the file no longer reaches up to there.
        """
        ...

    @property
    def changed(self) -> Callable[[int, int], str | None] | None:
        """Function from ``(start, stop)`` to a sentence on what of it is no longer as it was.

        It returns None if nothing is known to have changed since the source was made.
        """
        ...

    @property
    def deliver(self) -> Callable[[Sink, OnRange | None], None] | None:
        """Function that copies the whole body into a sink in an order of the source's own choice.

        A source that gets its bytes from elsewhere has one; :func:`~flstream.model.copy.copy` calls
        it. It calls the second argument, if there is one, with each range that is in the sink.
        """
        ...

    def views(self, start: int, stop: int, scratch: Scratch) -> Sequence[memoryview]:
        """Return the bytes ``[start, stop)`` of the body, at least one, as consecutive views.

        A source that does not have the bytes in memory puts them into ``scratch``. Such views are
        valid until the scratch is used again.
        """
        ...


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


def changed_through(
    source: Source, origins: Callable[[int, int], Iterable[tuple[int, int]]]
) -> Callable[[int, int], str | None] | None:
    """Return the :attr:`Source.changed` of a source that is derived from another.

    Args:
        source: The other one.
        origins: Returns the ranges of it that a range is made of.
    """
    look = source.changed
    if look is None:
        return None

    def changed(start: int, stop: int) -> str | None:
        sentences = (look(first, last) for first, last in origins(start, stop))
        return next((each for each in sentences if each), None)

    return changed
