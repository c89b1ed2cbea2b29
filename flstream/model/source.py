"""Sources and sinks of the bytes of a model's body.

A source reads any range ``[start, stop)`` of its body into memory that it is given. One that has
its bytes in memory may show them in place, so that they are not copied on their way to a socket.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

from flstream.model.layout import Layout

# Larger buffers are not kept: one is asked for when a whole model is read at once.
_KEPT_BYTES = 32 << 20

OnRange = Callable[[int, int], None]
"""Function called with a range of the body: the offset of its first byte, and that after its last.
"""


class Scratch:
    """Reusable buffer for ranges: fresh pages cost more than copying into them.

    Attributes:
        buffer: The memory kept between calls, as long as the longest range so far (32 MiB at most).
    """

    def __init__(self) -> None:
        self.buffer = bytearray()

    def take(self, size: int) -> memoryview:
        """Return a writable view of ``size`` bytes of any content, until the next call."""
        if size > _KEPT_BYTES:
            return memoryview(bytearray(size))
        if len(self.buffer) < size:
            self.buffer = bytearray(size)
        return memoryview(self.buffer)[:size]


class Source(Protocol):
    """Body to read range by range; users may offer bodies of their own, too.

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


def in_place(source: Source, start: int, stop: int) -> Sequence[memoryview] | None:
    """Return the bytes ``[start, stop)`` in memory in place, as consecutive views.

    A source says that with a method ``in_place(start, stop)``, if it has one.

    Returns:
        The views; None if some of the bytes lie elsewhere, or in another order.
    """
    show = getattr(source, "in_place", None)
    return None if show is None else cast(Sequence[memoryview] | None, show(start, stop))


def change_of(source: Source) -> str | None:
    """Return a sentence on the changes of a source since it was made; None for none.

    A source says that with a method ``changed()``, if it has one.
    """
    changed = getattr(source, "changed", None)
    if changed is None:
        return None
    try:
        change = changed()
    except Exception as error:  # of the user's code
        return f"whether it was changed cannot be told: {type(error).__name__}: {error}"
    return None if not change else change if isinstance(change, str) else "it was changed"


def views_of(source: Source, start: int, stop: int, scratch: Scratch) -> Sequence[memoryview]:
    """Return a source's bytes as consecutive views, in place or in ``scratch``.

    Raises:
        FlstreamError: They cannot be read.
    """
    if (views := in_place(source, start, stop)) is not None:
        return views
    view = scratch.take(stop - start)
    source.read(start, stop, view)
    return [view]


def view_of(source: Source, start: int, stop: int, scratch: Scratch) -> memoryview:
    """Return a source's bytes as one view, in place or in ``scratch``."""
    views = views_of(source, start, stop, scratch)
    if len(views) == 1:
        return views[0]
    view = scratch.take(stop - start)
    source.read(start, stop, view)
    return view


class Sink(Protocol):
    """Body to write range by range."""

    @property
    def layout(self) -> Layout:
        """Tensors of the body: names, dtypes, shapes and offsets."""
        ...

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        """Return writable views of ``stop - start`` bytes for the bytes ``[start, stop)``.

        Nothing counts as written before :meth:`commit`.
        """
        ...

    def commit(self, start: int, stop: int) -> None:
        """Take the bytes in the views of ``[start, stop)``, the last requested ones."""
        ...
