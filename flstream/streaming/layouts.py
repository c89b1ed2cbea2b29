"""Cached layouts of senders: that of a round is most often the same as the round's before."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

from flstream.errors import LayoutError, ProtocolError
from flstream.model.layout import Layout, parse_header

# The header of 10,000 tensors has 1 MiB, and parsing it takes a fifth as long as receiving their
# 1 GB. Larger ones are not cached, so that the cache stays small beside a receiver's buffers.
_MOST_KEPT_BYTES = 2 << 20


def layout_of_header(header: bytes, peer: str) -> Layout:
    """Return the layout in the JSON of a safetensors header; the same object for the same bytes.

    Args:
        header: JSON from the sender.
        peer: Name of the sender, for messages.

    Raises:
        ProtocolError: It is not a sound header.
    """
    with suppress(LayoutError):  # raised again below, with the sender's name
        if len(header) <= _MOST_KEPT_BYTES:
            return _kept(header)
    try:
        return parse_header(header, peer)[0]
    except LayoutError as error:
        raise ProtocolError(str(error)) from error


@lru_cache(maxsize=2)
def _kept(header: bytes) -> Layout:
    return parse_header(header, "a sender")[0]
