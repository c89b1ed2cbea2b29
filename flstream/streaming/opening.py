"""Opening a ref: its layout, and whether its body comes without further requests."""

from __future__ import annotations

from typing import NamedTuple

from flstream.model.layout import ALIGNMENT, Layout
from flstream.streaming.exchange import Exchange
from flstream.streaming.layouts import layout_of_header
from flstream.streaming.limits import Limits
from flstream.streaming.settings import StreamSettings
from flstream.streaming.wire import PUSHED, Credit, Open, Opened

# Longest body, in bytes, that comes together with its layout. A receiver that has part of it or no
# room for it then receives no more than that in vain.
_MOST_EAGER_BYTES = 64 << 10


class OpenedRef(NamedTuple):
    """A ref that a receiver has opened.

    Attributes:
        layout: Layout of the sender.
        number: Number of the request that opened it.
        frame_size: Length in bytes of the longest frame; 0 is the whole model in one.
        is_eager: Whether the sender sends the body together with the layout.
        is_pushed: Whether the sender pushes the body, in frames that fit the receiver's own.
        limit: Offset up to which a push is sent before it needs a grant.
    """

    layout: Layout
    number: int
    frame_size: int
    is_eager: bool
    is_pushed: bool
    limit: int


def open_ref(exchange: Exchange, settings: StreamSettings, limits: Limits) -> OpenedRef:
    """Open a ref, and refuse a push whose frames do not fit.

    Args:
        exchange: Messages of the download; its time starts again afterwards.
        settings: Sizes, window and timeouts.
        limits: What the sender may state.

    Raises:
        StreamingError: The sender refused, fell silent, or is gone.
    """
    number, frame_size, most_eager = exchange.next_number(), settings.frame_size, 0
    if frame_size and not settings.push:
        most_eager = min(_MOST_EAGER_BYTES, settings.bytes_a_request)
    request = Open(exchange.token, number, most_eager, frame_size)
    opened = exchange.ask(request, Opened, unasked=settings.push)
    exchange.renew()
    exchange.has_missed = False  # on a connection that broke; the answer came on another
    layout = layout_of_header(opened.layout, exchange.peer, limits)
    exchange.allow(layout.nbytes)
    size = opened.chunk_size
    fits = size > 0 and not size % ALIGNMENT and not frame_size % size
    is_pushed = opened.request == PUSHED and fits
    if opened.request == PUSHED and not fits:
        exchange.send(Credit(exchange.token, exchange.next_number(), 0))
    return OpenedRef(
        layout,
        number,
        size if is_pushed else frame_size,
        0 < layout.nbytes <= most_eager,
        is_pushed,
        opened.limit,
    )
