"""Packets of a data connection: a fixed header, a payload, and its digest.

A packet is either a small message (msgpack) or a frame (bytes of a body). A reply names the request
that it answers. docs/internals/protocol.md has all of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, NamedTuple, TypeVar

import msgspec
import xxhash
from msgspec.msgpack import Decoder

from flstream.errors import BrokenStreamError, ProtocolError
from flstream.text import quotable
from flstream.transport.channel import Channel, split
from flstream.transport.messages import UNREADABLE

TOKEN_BYTES = 16
"""Length in bytes of a ref's token: 128 unguessable bits."""

MAX_REQUEST_BYTES = 1 << 20
"""Most bytes of a message that a service accepts. Receivers accept as many as a header may take."""

MAX_CHUNK_BYTES = 1 << 30
"""Most bytes of a frame that a receiver may request, except for a body in one."""

MAX_RANGES = 1 << 15
"""Most ranges of one request."""

MAX_SPECS = 1 << 10
"""Most tensors of one request for refs."""

VERSION = 3
"""Version of the protocol. Peers of another one are refused."""

MESSAGE, FRAME, ENCODED = 1, 2, 3

_MAGIC = b"FLST"
# magic, version, kind, number of the request, start, length; then the digest of all these.
_FIELDS = struct.Struct("<4sBB2xIQQ")
_CHECKED = struct.Struct(f"<{_FIELDS.size}sQ")
HEADER_BYTES = _CHECKED.size
TRAILER_BYTES = 8

# Bytes that are read beyond what is waited for: a small message, or the next header.
_AHEAD_BYTES = 4 << 10
# Bytes of a payload after which signals and deadlines are looked at, though more keep coming.
_MOST_UNCHECKED = 8 << 20

Range = tuple[int, int]
"""Bytes ``[start, stop)`` of a body."""

# Largest number that a packet's header holds. A larger one, copied into an answer, would not fit.
Number = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_Token = Annotated[bytes, msgspec.Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]
_Text = Annotated[str, msgspec.Meta(max_length=64)]


class Header(NamedTuple):
    """The header of a packet.

    Attributes:
        kind: :data:`MESSAGE`, :data:`FRAME`, or :data:`ENCODED` for a frame that a codec encoded.
        number: Number of the request that this is, or answers.
        start: For a frame, offset in bytes of its first byte in the body.
        length: Length of the payload in bytes.
    """

    kind: int
    number: int
    start: int
    length: int

    def pack(self) -> bytes:
        """Encode the header."""
        fields = _FIELDS.pack(_MAGIC, VERSION, *self)
        return _CHECKED.pack(fields, xxhash.xxh3_64_intdigest(fields))

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview, peer: str) -> Header:
        """Decode a header; raise BrokenStreamError, or ProtocolError for its version."""
        fields, digest = _CHECKED.unpack(data)
        magic, version, *values = _FIELDS.unpack(fields)
        if magic != _MAGIC or xxhash.xxh3_64_intdigest(fields) != digest:
            raise BrokenStreamError(f"{peer} sent bytes that are no packet of version {VERSION}")
        expect_version(version, peer)
        header = cls(*values)
        if header.kind not in (MESSAGE, FRAME, ENCODED):
            raise BrokenStreamError(f"{peer} sent a packet of the unknown kind {header.kind}")
        return header


class Hello(msgspec.Struct, tag=True, frozen=True):
    """First message of either side."""

    version: int


class Open(msgspec.Struct, tag=True, frozen=True):
    """Request of a receiver: the layout of a ref.

    A body of at most ``eager`` bytes is to be sent at once, in frames of at most ``chunk_size``, as
    if this request had fetched it, too. That saves a round trip. With ``digests``, those of all
    blocks are wanted. With ``direct``, where the bytes lie, so that the receiver reads them itself.
    """

    token: _Token
    number: Number
    eager: int = 0
    chunk_size: int = 0
    digests: bool = False
    direct: bool = False


class Fetch(msgspec.Struct, tag=True, frozen=True):
    """Request of a receiver: ranges ``[start, stop)`` in frames of ``chunk_size``.

    It takes the place of one that is being answered. A ``chunk_size`` of 0 requests each range in
    one frame. Where frames may be ``encoded``, ``base`` names the model that the receiver has for
    that; empty for none.
    """

    token: _Token
    number: Number
    ranges: Annotated[list[tuple[int, int]], msgspec.Meta(min_length=1, max_length=MAX_RANGES)]
    chunk_size: int
    encoded: bool = False
    base: _Text = ""


class Find(msgspec.Struct, tag=True, frozen=True):
    """Request of a receiver: the refs on offer to it that have some tensors.

    A tensor has a name, a round, tags in any order, and is part of a report or not.
    """

    number: Number
    specs: Annotated[
        list[tuple[str, int, tuple[str, ...], bool]], msgspec.Meta(max_length=MAX_SPECS)
    ]


class Ping(msgspec.Struct, tag=True, frozen=True):
    """Request of a receiver: which of its requests is being answered.

    It is answered before any further frame, and refused if what the ref has on offer was changed.
    One with the number 0 is a beat: it says that the receiver lives, and has no answer.
    """

    token: _Token
    number: Number


class Close(msgspec.Struct, tag=True, frozen=True):
    """Notice of a receiver: it is done with this ref (``ok``), or why it failed."""

    token: _Token
    number: Number
    ok: bool
    reason: str = ""


class InFile(msgspec.Struct, tag="file", frozen=True):
    """Place of a body in a file, whose descriptor comes with this message."""

    offset: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class InProcess(msgspec.Struct, tag="memory", frozen=True):
    """Place of a body in the sender's memory: addresses and lengths."""

    spans: list[tuple[int, int]]


class Opened(msgspec.Struct, tag=True, frozen=True):
    """Answer of a sender: the layout, as the JSON of a safetensors header.

    The longest frame that it sends has ``chunk_size`` bytes; 0 is any that it is asked for.
    ``order`` has the places of the names, first of the tensors, then of the aliases, in the order
    in which the receiver is to have them, as JSON; empty if that is their order. ``digests`` has
    the xxh3-64 of each block of ``block`` bytes, eight bytes each, little-endian; none if they are
    not asked for. ``place`` says where the body can be read, from here up to the answer to a close.
    ``decoded`` is the layout of the body that this one is an encoded form of; empty for none.
    """

    number: Number
    layout: bytes
    chunk_size: int = 0
    order: str = ""
    block: int = 0
    digests: bytes = b""
    place: InFile | InProcess | None = None
    decoded: bytes = b""


class Found(msgspec.Struct, tag=True, frozen=True):
    """Answer of a sender: the token of the oldest ref with each tensor; empty for none."""

    number: Number
    tokens: list[bytes]


class Refused(msgspec.Struct, tag=True, frozen=True):
    """Answer of a sender: it refuses, for a reason."""

    number: Number
    reason: str


class Pong(msgspec.Struct, tag=True, frozen=True):
    """Answer of a sender: the number of the request that it is answering; 0 for none."""

    number: Number
    answering: Number = 0


class Closed(msgspec.Struct, tag=True, frozen=True):
    """Answer of a sender: it knows that the receiver is done."""

    number: Number


Request = Open | Fetch | Find | Ping | Close
Reply = Opened | Found | Refused | Pong | Closed
_encoder = msgspec.msgpack.Encoder()
MessageT = TypeVar("MessageT")
REQUESTS: Decoder[Request | Hello] = Decoder(Request | Hello)
REPLIES: Decoder[Reply | Hello] = Decoder(Reply | Hello)


def expect_version(version: int, peer: str) -> None:
    """Refuse a peer of another version of the protocol."""
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


def pack_message(message: Request | Reply | Hello) -> bytes:
    """Encode a whole packet for a message."""
    payload = _encoder.encode(message)
    number = 0 if isinstance(message, Hello) else message.number
    head = Header(MESSAGE, number, 0, len(payload)).pack()
    return head + payload + pack_digest(digest_of([payload]))


def pack_digest(digest: int) -> bytes:
    """Encode the digest that follows a payload."""
    return digest.to_bytes(TRAILER_BYTES, "little")


def decode(kinds: Decoder[MessageT], payload: bytes | bytearray, peer: str) -> MessageT:
    """Decode a message of the types in :data:`REQUESTS` or :data:`REPLIES`."""
    try:
        return kinds.decode(payload)
    except UNREADABLE as error:  # which may quote the message
        raise ProtocolError(
            f"{peer} sent a message that cannot be read: {quotable(str(error))}"
        ) from error


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return ordered ranges, with touching ones joined."""
    union: list[Range] = []
    for start, stop in ranges:
        if union and union[-1][1] == start:
            union[-1] = union[-1][0], stop
        else:
            union.append((start, stop))
    return union


def cut(ranges: Iterable[Range], step: int) -> Iterator[Range]:
    """Cut ranges into pieces of ``step`` bytes at most; 0 leaves them whole."""
    for start, stop in ranges:
        size = step or stop - start
        for first in range(start, stop, size):
            yield first, min(first + size, stop)


Wait = Callable[[], None]
"""Function that waits until something has arrived; it raises an error once that takes too long."""


class PacketReader:
    """Reader of the packets that arrive on a channel from `peer`."""

    def __init__(self, channel: Channel, peer: str) -> None:
        self.has_greeted = False  # whether the first message was read
        self.left = 0  # bytes of the present packet that are still to come
        self.channel = channel
        self._peer = peer
        self._ahead = bytearray()
        self._following = memoryview(bytearray(_AHEAD_BYTES))

    @property
    def has_more(self) -> bool:
        """Whether received bytes are unread."""
        return bool(self._ahead)

    def header(self, wait: Wait) -> Header:
        """Return the header of the next packet; read its payload next."""
        # Skip the rest of a packet that an interrupted reader left.
        while self.left or len(self._ahead) < HEADER_BYTES:
            if self.left and self._ahead:
                count = min(self.left, len(self._ahead))
                del self._ahead[:count]
                self.left -= count
            else:
                while not (count := self.channel.receive_some([self._following])):
                    wait()
                self._ahead += self._following[:count]
        header = Header.parse(self._ahead[:HEADER_BYTES], self._peer)
        del self._ahead[:HEADER_BYTES]
        self.left = header.length + TRAILER_BYTES
        return header

    def payload(self, views: Sequence[memoryview], wait: Wait) -> bool:
        """Fill the views with a payload; return whether its digest matches."""
        digest, trailer = xxhash.xxh3_64(), bytearray(TRAILER_BYTES)
        buffers = [*(view for view in views if len(view)), memoryview(trailer)]
        unchecked = 0
        while buffers:
            if unchecked >= _MOST_UNCHECKED:
                wait()
                unchecked = 0
            if self._ahead:
                count = min(len(buffers[0]), len(self._ahead))
                buffers[0][:count] = self._ahead[:count]
                del self._ahead[:count]
            else:
                # One call may go on for as long as the sender keeps up, and nothing ends it.
                most = min(sum(map(len, buffers)), _MOST_UNCHECKED)
                wanted, later = split(buffers, most)
                into = wanted if later else [*wanted, self._following]
                while not (count := self.channel.receive_some(into)):
                    wait()
                if over := max(count - sum(map(len, buffers)), 0):
                    self._ahead += self._following[:over]
                    count -= over
            self.left -= count
            unchecked += count
            come, buffers = split(buffers, count)
            # Digested at once, piece by piece: the bytes are still in the processor's cache, and
            # the sender fills the channel meanwhile.
            for view in come:
                if view.obj is not trailer:
                    digest.update(view)
        return digest.digest()[::-1] == trailer

    def message(self, header: Header, most: int, wait: Wait) -> bytearray:
        """Return the payload of a message of at most `most` bytes."""
        if header.length > most:
            raise ProtocolError(
                f"{self._peer} sent a message of {header.length} bytes, and {most} are taken here "
                "at most (Limits.layout_bytes)"
            )
        payload = bytearray(header.length)
        if not self.payload([memoryview(payload)], wait):
            raise BrokenStreamError(f"a message of {self._peer} does not match its digest")
        return payload
