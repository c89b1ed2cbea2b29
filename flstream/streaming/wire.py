"""What travels on a data channel: packets of a fixed header and a payload.

A packet is either a small message (msgpack) or a frame (bytes of a body). Every payload carries
its xxh3-64 digest. A reply names the request it answers, so nothing depends on its position.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Annotated, NamedTuple

import msgspec
import xxhash

from flstream.errors import ProtocolError
from flstream.transport.messages import UNREADABLE

TOKEN_BYTES = 16
"""Length of a ref's token: 128 unguessable bits."""

MAX_REQUEST_BYTES = 64 << 10
"""The longest message a service accepts. Receivers accept as much as a header may take."""

_MAGIC = b"fl"
_VERSION = 1
# magic, version, kind, request, token, start, length, digest
_HEADER = struct.Struct("<2sBBI16sQQQ")
HEADER_BYTES = _HEADER.size

MESSAGE, FRAME = 1, 2

# What a packet's header has room for. A number beyond it, copied into an answer, would not fit.
Number = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class Header(NamedTuple):
    """What stands before each payload.

    Attributes:
        kind: :data:`MESSAGE` or :data:`FRAME`.
        request: number the receiver gave to the request that this answers.
        token: the ref.
        start: for a frame, offset of its first byte in the body.
        length: bytes of payload.
        digest: xxh3-64 of the payload.
    """

    kind: int
    request: int
    token: bytes
    start: int
    length: int
    digest: int

    def pack(self) -> bytes:
        """The header's 48 bytes."""
        return _HEADER.pack(_MAGIC, _VERSION, *self)

    @classmethod
    def unpack(cls, data: bytes | bytearray, peer: str) -> Header:
        """Read a header.

        Raises:
            ProtocolError: these are not the 48 bytes of a header of this version.
        """
        if len(data) != HEADER_BYTES:
            raise ProtocolError(f"{peer} sent {len(data)} bytes where a header was due")
        magic, version, *fields = _HEADER.unpack(data)
        if magic != _MAGIC or version != _VERSION:
            raise ProtocolError(f"{peer} sent bytes that are not a packet of protocol {_VERSION}")
        header = cls(*fields)
        if header.kind not in (MESSAGE, FRAME):
            raise ProtocolError(f"{peer} sent a packet of unknown kind {header.kind}")
        return header


class Open(msgspec.Struct, tag=True, frozen=True):
    """Receiver: what is the layout of this ref?"""

    token: bytes
    request: Number


class Fetch(msgspec.Struct, tag=True, frozen=True):
    """Receiver: send the bytes ``[start, stop)`` in frames of at most ``chunk_size``.

    A ``chunk_size`` of 0 asks for the whole model serialised into one message, header and all.
    """

    token: bytes
    request: Number
    start: int
    stop: int
    chunk_size: int


class Close(msgspec.Struct, tag=True, frozen=True):
    """Receiver: I am done with this ref, for better (``ok``) or worse (``reason``)."""

    token: bytes
    request: Number
    ok: bool
    reason: str


class Opened(msgspec.Struct, tag=True, frozen=True):
    """Sender: the layout, as the JSON of a safetensors header."""

    request: Number
    layout: bytes


class Refused(msgspec.Struct, tag=True, frozen=True):
    """Sender: no, and why."""

    request: Number
    reason: str


Request = Open | Fetch | Close
Reply = Opened | Refused
_encoder = msgspec.msgpack.Encoder()
_request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Open | Fetch | Close)
_reply_decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Opened | Refused)


def digest_of(views: Iterable[memoryview | bytes | bytearray]) -> int:
    """xxh3-64 of the views' bytes, one after another."""
    state = xxhash.xxh3_64()
    for view in views:
        state.update(view)
    return state.intdigest()


def pack_message(message: Request | Reply, token: bytes) -> bytes:
    """A whole packet, header and payload, for a message."""
    payload = _encoder.encode(message)
    header = Header(MESSAGE, message.request, token, 0, len(payload), digest_of([payload]))
    return header.pack() + payload


def decode_request(payload: bytes, peer: str) -> Request:
    """Read a receiver's message.

    Raises:
        ProtocolError: the payload is not one of them.
    """
    try:
        return _request_decoder.decode(payload)
    except UNREADABLE as error:
        raise ProtocolError(f"{peer} sent a message that cannot be read: {error}") from error


def decode_reply(payload: bytes, peer: str) -> Reply:
    """Read a sender's message.

    Raises:
        ProtocolError: the payload is not one of them.
    """
    try:
        return _reply_decoder.decode(payload)
    except UNREADABLE as error:
        raise ProtocolError(f"{peer} sent a message that cannot be read: {error}") from error
