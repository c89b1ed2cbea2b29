"""Packets as docs/internals/protocol.md has them, made and read by hand, without flstream."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import xxhash

VERSION = 3
MESSAGE, FRAME, ENCODED = 1, 2, 3
# magic, version, kind, number, start, length; then their digest
FIELDS = struct.Struct("<4sBB2xIQQ")
HEADER_BYTES, TRAILER_BYTES = FIELDS.size + 8, 8
LONGEST = {MESSAGE: 12 << 20, FRAME: 1 << 30, ENCODED: 1 << 30}
"""Most bytes of a payload, by kind."""


class BrokenError(Exception):
    """The other side has ended, or sent what is no packet."""


class FailedError(Exception):
    """No further attempt can succeed."""


class Packet(NamedTuple):
    """A packet with a sound header, and all of its bytes."""

    kind: int
    number: int
    start: int
    data: bytes

    @property
    def payload(self) -> bytes:
        return self.data[HEADER_BYTES:-TRAILER_BYTES]

    @property
    def length(self) -> int:
        return len(self.payload)

    @property
    def is_sound(self) -> bool:
        return self.data[-TRAILER_BYTES:] == digest(self.payload)

    @property
    def message(self) -> dict[str, Any]:
        """The map of a message."""
        if not self.is_sound:
            raise BrokenError("a message that does not match its digest")
        return msgspec.msgpack.decode(self.payload)


def digest(data: bytes) -> bytes:
    return xxhash.xxh3_64_intdigest(data).to_bytes(8, "little")


def packed(kind: int, number: int, start: int, payload: bytes) -> bytes:
    fields = FIELDS.pack(b"FLST", VERSION, kind, number, start, len(payload))
    return fields + digest(fields) + payload + digest(payload)


def message(name: str, number: int, **fields: Any) -> bytes:
    """A whole packet for a message; its number is a field of it, but for a greeting."""
    content = {"type": name, **({} if name == "Hello" else {"number": number}), **fields}
    return packed(MESSAGE, number, 0, msgspec.msgpack.encode(content))


def greeting(version: int = VERSION) -> bytes:
    return message("Hello", 0, version=version)


def exactly(sock: socket.socket, count: int) -> bytes:
    """So many bytes of a socket."""
    data = bytearray()
    while len(data) < count:
        more = sock.recv(min(count - len(data), 1 << 20))
        if not more:
            raise BrokenError("the connection has ended")
        data += more
    return bytes(data)


def read_packet(sock: socket.socket, read: Callable[..., bytes] = exactly) -> Packet:
    """The next packet of a socket, of which `read` gives so many bytes."""
    head = read(sock, HEADER_BYTES)
    magic, version, kind, number, start, length = FIELDS.unpack(head[:-8])
    if magic != b"FLST" or digest(head[:-8]) != head[-8:]:
        raise BrokenError("no sound header")
    if version != VERSION:
        raise FailedError(f"the other side speaks version {version}")
    if length > LONGEST.get(kind, -1):
        raise BrokenError("a header that makes no sense")
    return Packet(kind, number, start, head + read(sock, length + TRAILER_BYTES))
