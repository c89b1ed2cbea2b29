"""Copying a body: the one loop behind downloads, checkpoints, conversions and adopted updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flstream.errors import LayoutError
from flstream.model.digests import BodyDigest
from flstream.model.source import OnRange, Scratch, Sink, Source, views_of

# Bytes that stay in a core's cache from being read to being digested and written.
_STEP = 1 << 20


def copy(
    source: Source,
    sink: Sink,
    *,
    step: int = _STEP,
    on_range: OnRange | None = None,
    digest: BodyDigest | None = None,
    origin: str = "the source",
) -> None:
    """Copy the whole body of a source into a sink.

    The sink is left unfinished: making it durable, where that applies, is the caller's part.

    Args:
        source: Body to read.
        sink: Body to write, of the same layout.
        step: Bytes copied at a time. A source that delivers in ranges of its own uses those.
        on_range: Called with each range once it is in the sink. The ranges cover the body; their
            order is that of the source's delivery.
        digest: Updated with the body's bytes, which are then copied from front to back.
        origin: Name of whoever offers the source, for messages.

    Raises:
        LayoutError: The layouts differ; the message names the first tensor that does.
        FlstreamError: The source cannot be read, or the sink cannot be written.
    """
    if sink.layout != source.layout:
        # The same range would mean other tensors on either side.
        difference = source.layout.difference(sink.layout)
        raise LayoutError(f"what {origin} offers does not fit the sink: {difference}")
    if digest is not None:
        sink = ObservedSink(sink, lambda start, stop, views: digest.update(views))
    deliver = getattr(source, "deliver", None)
    if deliver is not None:
        deliver(sink, on_range)
        return
    scratch = Scratch()
    for start, stop in source.layout.ranges(step):
        scatter(views_of(source, start, stop, scratch), sink.views(start, stop))
        sink.commit(start, stop)
        if on_range is not None:
            on_range(start, stop)


def scatter(views: Sequence[memoryview], targets: Sequence[memoryview]) -> None:
    """Copy bytes from consecutive views into consecutive writable views, cut anywhere.

    Raises:
        ValueError: The two are not of the same length in bytes.
    """
    if sum(map(len, views)) != sum(map(len, targets)):
        raise ValueError("a source gave another number of bytes than it was asked for")
    rest, target = iter(targets), memoryview(b"")
    for view in views:
        while len(view):
            while not len(target):
                target = next(rest)
            count = min(len(view), len(target))
            target[:count] = view[:count]
            view, target = view[count:], target[count:]


class ObservedSink:
    """A sink whose bytes are looked at on their way into another sink, from front to back.

    Args:
        sink: The other sink.
        observe: Called with the start, the stop and the views of each range before it is committed.
            What it raises ends the copy.
    """

    random_access = False
    # What an earlier attempt left would have to be read to be looked at.
    resumed = False

    def __init__(
        self, sink: Sink, observe: Callable[[int, int, Sequence[memoryview]], None]
    ) -> None:
        self.layout = sink.layout
        self._sink = sink
        self._observe = observe
        self._views: Sequence[memoryview] = ()

    def written(self, start: int, stop: int) -> Sequence[memoryview]:
        """Return nothing: the sink is never resumed."""
        return ()

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        """Return the other sink's views."""
        self._views = self._sink.views(start, stop)
        return self._views

    def commit(self, start: int, stop: int) -> None:
        """Look at what was written into the views, and commit it."""
        self._observe(start, stop, self._views)
        self._sink.commit(start, stop)
