"""Cached layouts of senders: that of a round is most often the same as the round's before."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

from flstream.errors import LayoutError, ProtocolError
from flstream.model.layout import Layout, parse_header
from flstream.streaming.limits import DEFAULT_LIMITS, Limits

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
