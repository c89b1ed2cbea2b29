"""Encoded frames: the agreement of a sender's codec and a receiver's.

An encoded frame has a head of its own before what the codec made: the digest of the frame's bytes,
and whether a model was used that both sides have. So a receiver whose model is another one finds
that out, and fetches the frame as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple, Protocol

HEAD = struct.Struct("<QB7x")
"""Head of an encoded frame: the digest of the frame's bytes, and whether the model was used."""


class EncodedBytes(NamedTuple):
    """A frame in a codec's encoded form.

    Attributes:
        data: The bytes, fewer than the frame's.
        has_base: Whether the model that the receiver named was used.
    """

    data: bytes
    has_base: bool


FrameEncoder = Callable[[memoryview, int, int], EncodedBytes | None]
"""Function that encodes the bytes ``[start, stop)`` of a body; None where they become no fewer."""


class Decoder(Protocol):
    """Decoder of a body's frames.

    Attributes:
        base: Name of the model that this side has, by which a sender finds it; empty for none.
    """

    base: str

    def decode(
        self, data: memoryview, out: memoryview, start: int, stop: int, *, has_base: bool
    ) -> None:
        """Write the bytes ``[start, stop)`` into ``out``.

        Args:
            data: Bytes that a sender declares to be its codec's.
            out: Writable memory, as long as the range.
            start: Offset in bytes of the first byte in the body.
            stop: Offset in bytes after the last byte.
            has_base: Whether the sender has used the model.

        Raises:
            FlstreamError: It is no such range.
        """
        ...


EncoderFor = Callable[[str], FrameEncoder]
"""Function from the name of a receiver's model, which may be empty, to what encodes for it."""
