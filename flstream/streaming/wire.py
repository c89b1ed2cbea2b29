"""The packets of a data channel: a fixed header and a payload.

A packet is either a small message (msgpack) or a frame (bytes of a body). Every payload has an
xxh3-64 digest. A reply names the request that it answers, so nothing depends on its position.
docs/protocol.md has all of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Annotated, NamedTuple

import msgspec
import xxhash

from flstream.errors import BrokenStreamError, ProtocolError
from flstream.text import quotable
from flstream.transport.messages import UNREADABLE

TOKEN_BYTES = 16
"""Length in bytes of a ref's token: 128 unguessable bits."""

MAX_REQUEST_BYTES = 1 << 20
"""Most bytes of a message that a service accepts. Receivers accept as many as a header may take."""

MAX_CHUNK_BYTES = 1 << 30
"""Most bytes of a frame that a receiver may request, except for a model serialised into one."""

MAX_REQUESTS = 256
"""Most requests of one receiver that may wait: far more than a window, to bound a hostile one."""

MAX_DIGEST_BYTES = 64 << 20
"""Most bytes whose digests may be requested at once: the sender reads all of them."""

MAX_DIGESTS = 1 << 16
"""Most digests that may be requested at once."""

MAX_SAMPLE = 256
"""Most chunks of a sample."""

MAX_NAMES = 10_000
"""Most tensors of a part: to lay them out keeps a sender from others for 0.1 s."""

NOBODY = bytes(TOKEN_BYTES)
"""Token of messages that are about no ref."""

VERSION = 2
"""Version of the protocol. Peers of another one are refused."""

CAPABILITIES = ("digests", "encoded", "parts", "samples", "same")
"""What a sender can do beyond what every one can."""

_MAGIC = b"FLST"
# magic, version, kind, request, token, start, length, digest; then the digest of all these. Padded,
# so that the payload has the alignment of its source to lines of the processor's cache.
_FIELDS = struct.Struct("<4sBB2xI16sQQQ4x")
_CHECKED = struct.Struct("<56sQ")
HEADER_BYTES = _CHECKED.size

MESSAGE, FRAME, ENCODED = 1, 2, 3

# Largest numbers that a packet's header holds. A larger one, copied into an answer, would not fit.
Number = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class Header(NamedTuple):
    """The header of a packet.

    Attributes:
        kind: :data:`MESSAGE`, :data:`FRAME`, or :data:`ENCODED` for a frame that a codec encoded.
        request: Number of the request that this answers.
        token: Token of the ref.
        start: For a frame, offset in bytes of its first byte in the body.
        length: Length of the payload in bytes.
        digest: xxh3-64 of the payload.
    """

    kind: int
    request: int
    token: bytes
    start: int
    length: int
    digest: int

    def pack(self) -> bytes:
        """Encode the header in 64 bytes."""
        fields = _FIELDS.pack(_MAGIC, VERSION, *self)
        return _CHECKED.pack(fields, xxhash.xxh3_64_intdigest(fields))

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview, peer: str) -> Header:
        """Decode the 64 bytes that a peer sent.

        Raises:
            BrokenStreamError: They are no header.
            ProtocolError: The peer speaks another version of the protocol.
        """
        fields, digest = _CHECKED.unpack(data)
        magic, version, *values = _FIELDS.unpack(fields)
        if magic != _MAGIC or xxhash.xxh3_64_intdigest(fields) != digest:
            raise BrokenStreamError(f"{peer} sent bytes that are no packet")
        expect_version(version, peer)
        header = cls(*values)
        if header.kind not in (MESSAGE, FRAME, ENCODED):
            raise BrokenStreamError(f"{peer} sent a packet of the unknown kind {header.kind}")
        return header


class Hello(msgspec.Struct, tag=True, frozen=True):
    """First message of either side on a connection.

    Attributes:
        version: Version of the protocol.
        instance: Random bytes of a receiver, the same on all of its connections, by which one that
            comes back is known; none of a sender.
        capabilities: Names of what the side can do beyond what every one can. Unknown ones are
            passed over.
    """

    version: int
    instance: Annotated[bytes, msgspec.Meta(max_length=64)] = b""
    capabilities: Annotated[list[str], msgspec.Meta(max_length=64)] = []


class TensorSpec(msgspec.Struct, array_like=True, frozen=True):
    """A tensor by what it is, wherever it is on offer.

    After ``TensorSpec`` and ``TensorKey`` of OpenFL (its pull request 1575).

    Attributes:
        name: Name of the tensor.
        round: Number of the round that it is of.
        tags: What it is, such as ``trained``, in any order.
    """

    name: str
    round: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] = 0
    tags: tuple[str, ...] = ()


class Part(msgspec.Struct, frozen=True):
    """Some tensors, as a body of their own: of one ref, or of all that are on offer.

    Attributes:
        of: Token of the ref; :data:`NOBODY` where the tensors are looked up.
        names: Names of tensors of the ref.
        specs: Tensors to be looked up.
    """

    of: bytes = NOBODY
    names: Annotated[list[str], msgspec.Meta(max_length=MAX_NAMES)] = []
    specs: Annotated[list[TensorSpec], msgspec.Meta(max_length=MAX_NAMES)] = []


class Open(msgspec.Struct, tag=True, frozen=True):
    """Request of a receiver: the layout of a ref.

    A body of at most ``eager`` bytes is to be sent at once, in frames of at most ``chunk_size``, as
    if this request had also fetched it. That saves a round trip for a small body. If such a body
    has the digest ``have``, it is not sent. To open a ``part``, the receiver draws a token for it,
    which is that of a ref from then on.
    """

    token: bytes
    request: Number
    eager: int = 0
    chunk_size: int = 0
    part: Part | None = None
    have: Annotated[str, msgspec.Meta(max_length=64)] = ""


class Fetch(msgspec.Struct, tag=True, frozen=True):
    """Request of a receiver: the bytes ``[start, stop)`` in frames of at most ``chunk_size``.

    A ``chunk_size`` of 0 requests the whole model serialised into one message, with its header. An
    ``urgent`` request is for bytes that were requested before and lost: it precedes all others.
    Where frames may be ``encoded``, ``base`` names the model that the receiver has for that; empty
    for none.
    """

    token: bytes
    request: Number
    start: int
    stop: int
    chunk_size: int
    urgent: bool = False
    encoded: bool = False
    base: Annotated[str, msgspec.Meta(max_length=64)] = ""


class Digest(msgspec.Struct, tag=True, frozen=True):
    """Request of a receiver: the digests of the chunks of ``[start, stop)``.

    So a receiver that has a part of the body finds out which of its chunks are sound. With a
    ``sample``, only the chunks with these numbers are digested, counted from ``start`` on.
    """

    token: bytes
    request: Number
    start: int
    stop: int
    chunk_size: int
    sample: Annotated[list[Number], msgspec.Meta(max_length=MAX_SAMPLE)] = []


class Ping(msgspec.Struct, tag=True, frozen=True):
    """Request of a receiver: the numbers of its requests that are still to be answered.

    It is answered before any further frame, and refused if what the ref has on offer was changed.
    One with the request number 0 is a beat: it says that the receiver lives, and has no answer.
    """

    token: bytes
    request: Number


class Close(msgspec.Struct, tag=True, frozen=True):
    """Notice of a receiver: it is done with this ref, successfully (``ok``) or for a ``reason``."""

    token: bytes
    request: Number
    ok: bool
    reason: str


class Opened(msgspec.Struct, tag=True, frozen=True):
    """Answer of a sender: the layout, as the JSON of a safetensors header.

    The longest frame that it sends has ``chunk_size`` bytes; 0 is any that it is asked for.
    ``order`` has the places of the names, first of the tensors, then of the aliases, in the order
    in which the receiver is to have them; none if that is their order. ``same`` says that the body
    has the digest that the receiver has, so none of it is sent.
    """

    request: Number
    layout: bytes
    chunk_size: int = 0
    order: Annotated[list[int], msgspec.Meta(max_length=200_000)] = []
    same: bool = False


class Refused(msgspec.Struct, tag=True, frozen=True):
    """Answer of a sender: it refuses, for a reason."""

    request: Number
    reason: str


class Digested(msgspec.Struct, tag=True, frozen=True):
    """Answer of a sender: the xxh3-64 of each chunk, eight bytes each, little-endian."""

    request: Number
    digests: bytes


class Pong(msgspec.Struct, tag=True, frozen=True):
    """Answer of a sender: the requests of this connection that are not fully answered."""

    request: Number
    requests: Annotated[list[Number], msgspec.Meta(max_length=2 * MAX_REQUESTS)]


class Closed(msgspec.Struct, tag=True, frozen=True):
    """Answer of a sender: it knows that the receiver is done."""

    request: Number


Request = Open | Fetch | Digest | Ping | Close
Reply = Opened | Refused | Digested | Pong | Closed
_encoder = msgspec.msgpack.Encoder()
_request_decoder: msgspec.msgpack.Decoder[Request | Hello] = msgspec.msgpack.Decoder(
    Request | Hello
)
_reply_decoder: msgspec.msgpack.Decoder[Reply | Hello] = msgspec.msgpack.Decoder(Reply | Hello)


def expect_version(version: int, peer: str) -> None:
    """Refuse a peer of another version of the protocol.

    Raises:
        ProtocolError: It is one.
    """
    if version != VERSION:
        raise ProtocolError(
            f"{peer} speaks version {version} of the streaming protocol, and this is version "
            f"{VERSION}; install the same flstream at both ends"
        )


def digest_of(views: Iterable[memoryview | bytes | bytearray]) -> int:
    """Return the xxh3-64 of the views' bytes, one after another."""
    state = xxhash.xxh3_64()
    for view in views:
        state.update(view)
    return state.intdigest()


def pack_message(message: Request | Reply | Hello, token: bytes = NOBODY) -> bytes:
    """Encode a whole packet, header and payload, for a message."""
    payload = _encoder.encode(message)
    number = 0 if isinstance(message, Hello) else message.request
    header = Header(MESSAGE, number, token, 0, len(payload), digest_of([payload]))
    return header.pack() + payload


def decode_request(payload: bytes, peer: str) -> Request | Hello:
    """Decode a receiver's message.

    Raises:
        ProtocolError: The payload is not one.
    """
    try:
        return _request_decoder.decode(payload)
    except UNREADABLE as error:
        raise _unreadable(peer, error) from error


def decode_reply(payload: bytes | memoryview, peer: str) -> Reply | Hello:
    """Decode a sender's message.

    Raises:
        ProtocolError: The payload is not one.
    """
    try:
        return _reply_decoder.decode(payload)
    except UNREADABLE as error:
        raise _unreadable(peer, error) from error


def _unreadable(peer: str, error: Exception) -> ProtocolError:
    # The error may quote the message.
    return ProtocolError(f"{peer} sent a message that cannot be read: {quotable(str(error))}")
