"""Copy of a body: the one loop of checkpoints, conversions and adopted updates."""

from __future__ import annotations

from collections.abc import Sequence

from flstream.errors import LayoutError
from flstream.model.digests import BodyDigest
from flstream.model.layout import Layout
from flstream.model.source import Scratch, Sink, Source, in_place, views_of

# Bytes that stay in a core's cache from being read to being digested and written; a frame of the
# default length is received in place.
_STEP = 2 << 20


def copy(
    source: Source,
    sink: Sink,
    *,
    step: int = _STEP,
    digest: BodyDigest | None = None,
    origin: str = "the source",
) -> None:
    """Copy the whole body of a source into a sink.

    The sink is left unfinished: making it durable, where that applies, is the caller's part.

    Args:
        source: Body to read.
        sink: Body to write, of the same layout.
        step: Bytes copied at a time, from front to back.
        digest: Updated with the body's bytes.
        origin: Name of whoever offers the source, for messages.

    Raises:
        LayoutError: The layouts differ; the message names the first tensor that does.
        FlstreamError: The source cannot be read, or the sink cannot be written.
    """
    expect_fit(source.layout, sink, origin)
    scratch = Scratch()
    for start, stop in source.layout.ranges(step):
        targets = sink.views(start, stop)
        views = in_place(source, start, stop)
        if views is None and len(targets) == 1:
            source.read(start, stop, targets[0])
        else:
            scatter(views or views_of(source, start, stop, scratch), targets)
        if digest is not None:
            digest.update(targets)
        sink.commit(start, stop)


def expect_fit(layout: Layout, sink: Sink, origin: str) -> None:
    """Refuse a sink of another layout, whose ranges are of other tensors.

    Raises:
        LayoutError: It is one; the message names the first tensor that differs.
    """
    if sink.layout != layout:
        difference = layout.difference(sink.layout)
        raise LayoutError(f"what {origin} offers does not fit the sink: {difference}")


def scatter(views: Sequence[memoryview], targets: Sequence[memoryview]) -> None:
    """Copy bytes from consecutive views into writable views with other cuts.

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
