"""Opening a ref: its layout, and whether its body comes without further requests."""

from __future__ import annotations

from typing import NamedTuple

from flstream.model.layout import ALIGNMENT, Layout
from flstream.streaming.download_messages import DownloadMessages
from flstream.streaming.layouts import layout_of_header
from flstream.streaming.receiver import Patience, Receiver, StreamSettings
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

    @property
    def first_fetch(self) -> int:
        """Number of the first request that asks for bytes."""
        return self.number if self.is_eager else self.number + 1


def open_ref(
    receiver: Receiver,
    messages: DownloadMessages,
    token: bytes,
    settings: StreamSettings,
    patience: Patience,
) -> OpenedRef:
    """Open a ref, and refuse a push whose frames do not fit.

    Args:
        receiver: Receiving side of the channel.
        messages: Messages of the download.
        token: Token of the ref.
        settings: Sizes, window and timeouts.
        patience: Time of a request, which starts again afterwards.

    Raises:
        StreamingError: The sender refused, fell silent, or is gone.
    """
    number, frame_size, most_eager = receiver.next_number(), settings.frame_size, 0
    if frame_size and not settings.push:
        most_eager = min(_MOST_EAGER_BYTES, settings.bytes_a_request)
    request = Open(token, number, most_eager, frame_size)
    opened = messages.ask(request, Opened, patience, unasked=settings.push)
    patience.renew()
    layout = layout_of_header(opened.layout, receiver.peer, receiver.limits)
    messages.allow(layout.nbytes)
    size = opened.chunk_size
    fits = size > 0 and not size % ALIGNMENT and not frame_size % size
    is_pushed = opened.request == PUSHED and fits
    if opened.request == PUSHED and not fits:
        messages.send(Credit(token, receiver.next_number(), 0))
    return OpenedRef(
        layout,
        number,
        size if is_pushed else frame_size,
        0 < layout.nbytes <= most_eager,
        is_pushed,
        opened.limit,
    )
