"""A download: copying a snapshot from the peer of a channel into a sink."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from flstream.errors import FlstreamError, LayoutError, StreamingError
from flstream.model.body import Sink
from flstream.model.checkpoint import FileSink
from flstream.model.layout import Layout
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.remote import RemoteSource
from flstream.telemetry.events import Transfer

SinkT = TypeVar("SinkT", bound=Sink)

# How much of a whole serialised model is copied out at a time.
_COPY_STEP = 4 << 20


def download(
    receiver: Receiver,
    token: bytes,
    settings: StreamSettings,
    sink_for: Callable[[Layout], SinkT],
    on_chunk: Callable[[int, int], None] | None = None,
) -> tuple[SinkT, Transfer]:
    """Copy a snapshot from the peer of a channel into a sink.

    Args:
        receiver: where to fetch.
        token: the ref.
        settings: sizes, window and timeouts.
        sink_for: makes the sink, given the layout that the sender told.
        on_chunk: called with the range of each chunk once it is in the sink, in any order.

    Returns:
        The sink, filled, and what it cost.

    Raises:
        StreamingError: the sender refused, fell silent, broke the protocol or is gone; the sender
            is told if it can be.
        FlstreamError: the sink did not take the bytes.
    """
    heard = on_chunk or _nobody_asks
    remote = RemoteSource(receiver, token, settings)
    try:
        sink = sink_for(remote.layout)
        if sink.layout != remote.layout:
            # The same range would mean other tensors on either side.
            difference = remote.layout.difference(sink.layout)
            raise LayoutError(f"what {remote.peer} offers does not fit the sink: {difference}")
        if settings.chunk_size == 0:
            _copy(remote.receive_whole(), sink, heard)
        else:

            def commit(start: int, stop: int) -> None:
                sink.commit(start, stop)
                heard(start, stop)

            if isinstance(sink, FileSink) and sink.resumed:
                remote.verify(sink.written, heard)
            remote.receive_all(sink.views, commit)
    except FlstreamError as error:
        # The first error is the one to report, whether or not the sender can still hear of it.
        with suppress(StreamingError):
            remote.close(failure=str(error))
        raise
    # The bytes are here and sound, whether or not the sender still hears that they are.
    with suppress(StreamingError):
        remote.close()
    return sink, remote.cost


def _nobody_asks(start: int, stop: int) -> None:
    """Take no notice of a chunk."""


def _copy(body: memoryview, sink: Sink, heard: Callable[[int, int], None]) -> None:
    for start, stop in sink.layout.ranges(_COPY_STEP):
        offset = start
        for view in sink.views(start, stop):
            view[:] = body[offset : offset + len(view)]
            offset += len(view)
        sink.commit(start, stop)
        heard(start, stop)
