"""Opening a ref: its layout, and whether its body comes without further requests."""

from __future__ import annotations

from typing import NamedTuple

from flstream.errors import ProtocolError
from flstream.model.layout import ALIGNMENT, Layout
from flstream.streaming.exchange import Exchange
from flstream.streaming.layouts import layout_of_header
from flstream.streaming.limits import Limits
from flstream.streaming.settings import StreamSettings
from flstream.streaming.wire import PUSHED, Credit, Open, Opened, Part

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
        names: Names of the tensors and aliases in the order in which the sender lists them.
    """

    layout: Layout
    number: int
    frame_size: int
    is_eager: bool
    is_pushed: bool
    limit: int
    names: list[str]


def open_ref(
    exchange: Exchange, settings: StreamSettings, limits: Limits, part: Part | None = None
) -> OpenedRef:
    """Open a ref, and refuse a push whose frames do not fit.

    Args:
        exchange: Messages of the download; its time starts again afterwards.
        settings: Sizes, window and timeouts.
        limits: What the sender may state.
        part: What the token is to stand for, if it is not that of a ref.

    Raises:
        StreamingError: The sender refused, fell silent, or is gone.
    """
    number, frame_size, most_eager = exchange.next_number(), settings.frame_size, 0
    if frame_size and not settings.push:
        most_eager = min(_MOST_EAGER_BYTES, settings.bytes_a_request)
    request = Open(exchange.token, number, most_eager, frame_size, part)
    opened = exchange.ask(request, Opened, unasked=settings.push)
    exchange.renew()
    exchange.has_missed = False  # on a connection that broke; the answer came on another
    layout = layout_of_header(opened.layout, exchange.peer, limits)
    exchange.allow(layout.nbytes)
    names = layout.names
    if opened.order:
        if sorted(opened.order) != list(range(len(names))):
            raise ProtocolError(f"{exchange.peer} lists {len(names)} tensors in no order")
        names = [names[place] for place in opened.order]
    size = opened.chunk_size
    if size % ALIGNMENT:
        raise ProtocolError(f"{exchange.peer} sends chunks of {size} bytes, no multiple of 16")
    is_pushed = opened.request == PUSHED and size > 0 and not frame_size % size
    if opened.request == PUSHED and not is_pushed:
        exchange.send(Credit(exchange.token, exchange.next_number(), 0))
    elif size:
        frame_size = min(frame_size, size)
    is_eager = 0 < layout.nbytes <= most_eager
    return OpenedRef(layout, number, frame_size, is_eager, is_pushed, opened.limit, names)
