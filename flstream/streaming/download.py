"""A download: copying a snapshot from the peer of a channel into a sink."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

from flstream.errors import AbortedError, ChannelClosedError, DeadlineError, ProtocolError
from flstream.model.copy import copy
from flstream.model.layout import Layout
from flstream.model.source import OnRange, Sink, Source
from flstream.streaming.coding import DecoderFor
from flstream.streaming.held import KnownBody
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.remote import RemoteSource
from flstream.telemetry.events import Transfer
from flstream.transport.channel import AbortSignal

SinkT = TypeVar("SinkT", bound=Sink)

Decode = Callable[[RemoteSource], Source]
"""Function that returns what a source stands for that is read from front to back."""


class AtHand(NamedTuple, Generic[SinkT]):
    """What a receiver has before it downloads a body.

    Attributes:
        source_for: Returns a source that may have some of the body's bytes, or None, given the sink
            that is to receive it. It may be the sink itself.
        known: A short body, which may be the same.
        decoder_for: Makes what gives frames back that the sender has encoded; None to have them as
            they are.
    """

    source_for: Callable[[SinkT], Source | None]
    known: KnownBody | None = None
    decoder_for: DecoderFor | None = None


def download(
    receiver: Receiver,
    token: bytes,
    settings: StreamSettings,
    sink_for: Callable[[Layout], SinkT],
    on_range: OnRange | None = None,
    finish: Callable[[SinkT], object] | None = None,
    abort: AbortSignal | None = None,
    at_hand: AtHand[SinkT] | None = None,
    decode: Decode | None = None,
) -> tuple[SinkT, Transfer]:
    """Copy a snapshot from the peer of a channel into a sink, and report its end to the sender.

    Args:
        receiver: Receiving side of the channel.
        token: Token of the ref.
        settings: Sizes, window and timeouts.
        sink_for: Makes the sink, given the sender's layout.
        on_range: See :func:`deliver`.
        finish: See :func:`deliver`.
        abort: Signal that cancels the download; by default, that of the receiver.
        at_hand: What may have some of the bytes, so that they need not be sent.
        decode: See :func:`deliver`.

    Returns:
        The sink, filled and finished, and the cost of the transfer.

    Raises:
        FlstreamError: See :func:`deliver`.
    """
    here = at_hand or AtHand(lambda _: None)
    remote = RemoteSource(
        receiver, token, settings, abort, known=here.known, decoder_for=here.decoder_for
    )
    return deliver(remote, sink_for, on_range, finish, here.source_for, decode), remote.cost


def deliver(
    remote: RemoteSource,
    sink_for: Callable[[Layout], SinkT],
    on_range: OnRange | None = None,
    finish: Callable[[SinkT], object] | None = None,
    held: Callable[[SinkT], Source | None] | None = None,
    decode: Decode | None = None,
) -> SinkT:
    """Copy a remote source into a sink, and report its end to the sender.

    The sender is informed of every failure, also of one of a function that was given.

    Args:
        remote: The source.
        sink_for: Makes the sink, given the layout of what is copied: the sender's, unless decoded.
        on_range: Called with the range of each chunk once it is in the sink, in any order.
        finish: Called with the sink once it is filled, to make it durable. The sender is told that
            this receiver has the snapshot after that only.
        held: Returns a source that may have some of the bytes, given the sink, which it may be.
        decode: Returns what is copied into the sink, given what is sent, which is read from front
            to back; None for what is sent.

    Returns:
        The sink, filled and finished.

    Raises:
        StreamingError: The sender refused, fell silent, broke the protocol, is gone, or changed
            what it offered.
        LayoutError: The sink has another layout than the sender.
        FlstreamError: The sink could not be made or written.
    """
    try:
        body = remote if decode is None else decode(remote)
        sink = sink_for(body.layout)
        source = None if held is None else held(sink)
        if source is not None:
            remote.reuse(source)
        copy(body, sink, on_range=on_range, origin=remote.peer)
        if finish is not None:
            finish(sink)
    except BaseException as error:
        remote.fail(error)
        raise
    # The bytes are here and sound, whether or not the sender can still be informed. It refuses if
    # they are not what it offered, or come too late.
    with suppress(ChannelClosedError, DeadlineError, AbortedError, ProtocolError):
        remote.close()
    return sink
