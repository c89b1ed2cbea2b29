"""Encoded frames: the agreement of a sender's codec and a receiver's.

An encoded frame has a head of its own before what the codec made: the digest of the frame's bytes,
and whether a model was used that both sides have. So a receiver whose model is another one finds
that out, and fetches the frame as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

HEAD = struct.Struct("<QB7x")
"""Head of an encoded frame: the digest of the frame's bytes, and whether the model was used."""


class Coder(Protocol):
    """Encoder and decoder of a body's frames.

    Attributes:
        base: Name of the model that it uses, by which both sides know it; empty for none.
    """

    base: str

    def encode(self, data: memoryview, start: int, stop: int) -> bytes:
        """Return the bytes ``[start, stop)`` in encoded form; they are sent where they are fewer.

        Raises:
            FlstreamError: The codec fails.
        """
        ...

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


EncoderFor = Callable[[str], Coder]
"""Function from the name of a receiver's model, which may be empty, to what encodes for it."""
