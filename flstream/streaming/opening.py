"""Opening a ref: its layout, and whether its body comes without further requests."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from flstream.errors import LayoutError, ProtocolError, RefusedError
from flstream.model.layout import ALIGNMENT, Layout, parse_header
from flstream.streaming.exchange import Exchange
from flstream.streaming.limits import DEFAULT_LIMITS, Limits
from flstream.streaming.settings import StreamSettings
from flstream.streaming.wire import (
    MAX_NAMES,
    MAX_REQUEST_BYTES,
    Open,
    Opened,
    Part,
    pack_message,
)

MOST_EAGER_BYTES = 64 << 10
"""Length in bytes of the longest body that comes together with its layout.

A receiver that has part of it or no room for it then receives no more than that in vain.
"""

# The header of 10,000 tensors has 1 MiB, and parsing it takes a fifth as long as receiving their
# 1 GB. Larger ones are not cached, so that the cache stays small beside a receiver's buffers.
_MOST_KEPT_BYTES = 2 << 20


def layout_of_header(header: bytes, peer: str, limits: Limits = DEFAULT_LIMITS) -> Layout:
    """Return the layout in the JSON of a safetensors header; the same object for the same bytes.

    Args:
        header: JSON from the sender.
        peer: Name of the sender, for messages.
        limits: What the sender may state.

    Raises:
        ProtocolError: It is not a sound header, or beyond the limits.
    """
    if len(header) > limits.layout_bytes:
        raise ProtocolError(
            f"{peer} offers a layout of {len(header)} bytes, and {limits.layout_bytes} are taken "
            "here at most (Limits.layout_bytes)"
        )
    layout = _layout(header, peer, limits)
    if len(layout.tensors) > limits.layout_tensors:
        raise ProtocolError(
            f"{peer} offers {len(layout.tensors)} tensors, and {limits.layout_tensors} are taken "
            "here at most (Limits.layout_tensors)"
        )
    if layout.nbytes > limits.body_bytes:
        raise ProtocolError(
            f"{peer} offers {layout.nbytes} bytes, and {limits.body_bytes} are taken here at most "
            "(Limits.body_bytes)"
        )
    return layout


def _layout(header: bytes, peer: str, limits: Limits) -> Layout:
    with suppress(LayoutError):  # raised again below, with the sender's name
        if len(header) <= _MOST_KEPT_BYTES:
            return _kept(header)
    try:
        return parse_header(header, peer, limits.layout_tensors)[0]
    except LayoutError as error:
        raise ProtocolError(str(error)) from error


@lru_cache(maxsize=2)
def _kept(header: bytes) -> Layout:
    return parse_header(header, "a sender")[0]


class OpenedRef(NamedTuple):
    """A ref that a receiver has opened.

    Attributes:
        layout: Layout of the sender.
        frame_size: Length in bytes of the longest frame; 0 is the whole model in one.
        is_eager: Whether the whole body comes together with the layout, unless it is the same.
        number: Number of the request to open it, under which such a body comes.
        names: Names of the tensors and aliases in the order in which the sender lists them.
        is_same: Whether nothing of the body comes, since it has the digest that was stated.
    """

    layout: Layout
    frame_size: int
    is_eager: bool
    number: int
    names: list[str]
    is_same: bool = False


def open_ref(
    exchange: Exchange,
    settings: StreamSettings,
    limits: Limits,
    part: Part | None = None,
    have: str = "",
) -> OpenedRef:
    """Open a ref.

    Args:
        exchange: Messages of the download; its time starts again afterwards.
        settings: Sizes, window and timeouts.
        limits: What the sender may state.
        part: What the token is to stand for, if it is not that of a ref.
        have: Digest of a short body that is not to be sent; empty for none.

    Raises:
        StreamingError: The sender refused, fell silent, or is gone.
    """
    number, frame_size, most_eager = exchange.next_number(), settings.frame_size, 0
    if frame_size:
        most_eager = min(MOST_EAGER_BYTES, settings.bytes_a_request)
    request = Open(exchange.token, number, most_eager, frame_size, part, have)
    if part is not None and len(pack_message(request)) > MAX_REQUEST_BYTES:
        raise RefusedError(
            f"the names of the tensors take more than the {MAX_REQUEST_BYTES} bytes of a request; "
            "ask for fewer at a time, or for all"
        )
    if part is not None and max(len(part.names), len(part.specs)) > MAX_NAMES:
        raise RefusedError(
            f"more than {MAX_NAMES} tensors are selected; ask for fewer at a time, or for all"
        )
    opened = exchange.ask(request, Opened)
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
    is_eager = 0 < layout.nbytes <= most_eager
    frame_size = min(frame_size, size or frame_size)
    is_same = is_eager and opened.same and bool(have)
    return OpenedRef(layout, frame_size, is_eager, number, names, is_same)
