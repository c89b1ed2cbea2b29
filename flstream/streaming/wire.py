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

MAX_CHUNK_BYTES = 1 << 30
"""The longest frame a receiver may ask for, apart from a model serialised into one."""

MAX_DIGEST_BYTES = 16 << 20
"""The longest range of which the digests may be asked for at once: the sender reads all of it."""

MAX_DIGESTS = 1 << 16
"""The most digests that may be asked for at once."""

PUSHED = 0
"""The number of the request that nobody made: what is pushed answers it."""

MAGIC = b"FLST"
_VERSION = 1
# magic, version, kind, request, token, start, length, digest; then the digest of all that. Padded,
# so that the payload lies as its source does relative to a line of the processor's cache.
_FIELDS = struct.Struct("<4sBB2xI16sQQQ4x")
_CHECKED = struct.Struct("<56sQ")
HEADER_BYTES = _CHECKED.size

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
        """The header's 64 bytes."""
        fields = _FIELDS.pack(MAGIC, _VERSION, *self)
        return _CHECKED.pack(fields, xxhash.xxh3_64_intdigest(fields))

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview) -> Header | None:
        """Read 64 bytes, or say with None that they are no sound header of this version."""
        fields, digest = _CHECKED.unpack(data)
        if xxhash.xxh3_64_intdigest(fields) != digest:
            return None
        magic, version, *values = _FIELDS.unpack(fields)
        header = cls(*values)
        sound = magic == MAGIC and version == _VERSION and header.kind in (MESSAGE, FRAME)
        return header if sound else None


class Open(msgspec.Struct, tag=True, frozen=True):
    """Receiver: what is the layout of this ref?

    A body of at most ``eager`` bytes is to be sent at once, in frames of at most ``chunk_size``, as
    if this request had fetched it, too. That saves a small one a round trip.
    """

    token: bytes
    request: Number
    eager: int = 0
    chunk_size: int = 0


class Fetch(msgspec.Struct, tag=True, frozen=True):
    """Receiver: send the bytes ``[start, stop)`` in frames of at most ``chunk_size``.

    A ``chunk_size`` of 0 asks for the whole model serialised into one message, header and all.
    ``urgent`` is for what was asked for before and did not arrive: it goes before what waits.
    """

    token: bytes
    request: Number
    start: int
    stop: int
    chunk_size: int
    urgent: bool = False


class Credit(msgspec.Struct, tag=True, frozen=True):
    """Receiver: of what you push, you may send the bytes up to ``limit``; 0 ends the pushing."""

    token: bytes
    request: Number
    limit: int


class Digest(msgspec.Struct, tag=True, frozen=True):
    """Receiver: what are the digests of the chunks of ``[start, stop)``?

    So a receiver that has part of the body finds out which chunks of it are sound.
    """

    token: bytes
    request: Number
    start: int
    stop: int
    chunk_size: int


class Probe(msgspec.Struct, tag=True, frozen=True):
    """Receiver: nothing arrives; which of my requests are still to be answered?"""

    token: bytes
    request: Number


class Close(msgspec.Struct, tag=True, frozen=True):
    """Receiver: I am done with this ref, for better (``ok``) or worse (``reason``)."""

    token: bytes
    request: Number
    ok: bool
    reason: str


class Opened(msgspec.Struct, tag=True, frozen=True):
    """Sender: the layout, as the JSON of a safetensors header.

    Where the model is pushed, this comes unasked, and says in frames of which ``chunk_size`` and up
    to which ``limit`` it will be sent before the receiver has to grant more.
    """

    request: Number
    layout: bytes
    chunk_size: int = 0
    limit: int = 0


class Refused(msgspec.Struct, tag=True, frozen=True):
    """Sender: no, and why."""

    request: Number
    reason: str


class Digested(msgspec.Struct, tag=True, frozen=True):
    """Sender: the xxh3-64 of each chunk, eight bytes each, little-endian."""

    request: Number
    digests: bytes


class Waiting(msgspec.Struct, tag=True, frozen=True):
    """Sender: the requests of this ref that are still to be answered, in whole or in part."""

    request: Number
    requests: list[Number]


class Closed(msgspec.Struct, tag=True, frozen=True):
    """Sender: I have heard that you are done."""

    request: Number


Request = Open | Fetch | Credit | Digest | Probe | Close
Reply = Opened | Refused | Digested | Waiting | Closed
_encoder = msgspec.msgpack.Encoder()
_request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_reply_decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


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
