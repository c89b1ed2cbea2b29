"""A download: copying a snapshot from the peer of a channel into a sink."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from flstream.errors import FlstreamError, StreamingError
from flstream.model.body import OnRange, Sink
from flstream.model.copy import copy
from flstream.model.layout import Layout
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.remote import RemoteSource
from flstream.telemetry.events import Transfer

SinkT = TypeVar("SinkT", bound=Sink)


def download(
    receiver: Receiver,
    token: bytes,
    settings: StreamSettings,
    sink_for: Callable[[Layout], SinkT],
    on_range: OnRange | None = None,
) -> tuple[SinkT, Transfer]:
    """Copy a snapshot from the peer of a channel into a sink, and report its end to the sender.

    Args:
        receiver: Receiving side of the channel.
        token: Token of the ref.
        settings: Sizes, window and timeouts.
        sink_for: Makes the sink, given the sender's layout.
        on_range: Called with the range of each chunk once it is in the sink, in any order.

    Returns:
        The sink, filled but not finished, and the cost of the transfer.

    Raises:
        StreamingError: The sender refused, fell silent, broke the protocol or is gone.
        LayoutError: The sink has another layout than the sender.
        FlstreamError: The sink could not be made or written.
    """
    remote = RemoteSource(receiver, token, settings)
    try:
        sink = sink_for(remote.layout)
        copy(remote, sink, on_range=on_range, origin=remote.peer)
    except FlstreamError as error:
        # The first error is the one to report, whether or not the sender can still be informed.
        with suppress(StreamingError):
            remote.close(failure=str(error))
        raise
    # The bytes are here and sound, whether or not the sender can still be informed.
    with suppress(StreamingError):
        remote.close()
    return sink, remote.cost
