"""A receiver that was written from docs/internals/protocol.md alone, and knows nothing of flstream.

Direct reads and encoded frames, which a receiver has to allow, are left out.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import select
import socket
import struct
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any, NamedTuple

import msgspec
import packets
from packets import (
    MESSAGE,
    BrokenError,
    FailedError,
    Packet,
    exactly,
    greeting,
    message,
    read_packet,
)

LAST_NUMBER = 4294967295
MOST_RANGES, REPETITIONS = 32768, 5
PING_AFTER, PING_TIMEOUT, BEAT_AFTER, RETURN_TIMEOUT, TIMEOUT = 1.0, 5.0, 2.0, 10.0, 60.0
NOBODY = bytes(16)
ENTRY = ("dtype", "shape", "data_offsets")
Range = tuple[int, int]


class RefusedError(FailedError):
    """The sender says so."""


# TCP.
def introduction(key: bytes, role: bytes = b"receiver") -> bytes:
    """Return the 64 bytes with which who dials begins."""
    name = hashlib.sha256(b"flstream token" + key).digest()[:8]
    return b"FLSA\x01\0\0\0" + role.ljust(16, b"\0") + name + os.urandom(32)


def proof(key: bytes, side: bytes, own: bytes, theirs: bytes) -> bytes:
    """Return what only a side with the key can know."""
    text = b"flstream 1 " + side + b"\0" + own + theirs
    return hmac.digest(key, text, "sha256")


def dial(address: str, key: bytes, role: bytes = b"receiver") -> socket.socket:
    """Connect over TCP, and prove on both sides that the key is known."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=5)
    try:
        own = introduction(key, role)
        sock.sendall(own)
        theirs = exactly(sock, 32)
        sock.sendall(proof(key, b"dials", own, theirs))
        if not hmac.compare_digest(exactly(sock, 32), proof(key, b"accepts", own, theirs)):
            raise FailedError("who listens there does not know the key")
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return sock


class Tensor(NamedTuple):
    """A tensor as its bytes; `framework` is given in a payload."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    name: str
    framework: str = ""


class Body:
    """The body of an `opened` message, in frames of at most `chunk_size` bytes; 0 is any."""

    def __init__(self, opened: dict[str, Any], chunk_size: int) -> None:
        self.entries = json.loads(opened["layout"])
        tied = json.loads(self.entries.pop("__metadata__", {}).get("flstream.tied", "{}"))
        self.size = 0
        for entry in self.entries.values():
            start, stop = entry["data_offsets"]
            if start != self.size or stop < start or set(entry) != {*ENTRY}:
                raise FailedError("a layout with a hole")
            self.size = stop
        self.entries |= {name: self.entries[tied[name]] for name in sorted(tied)}
        names = list(self.entries)
        order = json.loads(opened.get("order") or "[]") or range(len(names))
        if sorted(order) != [*range(len(names))]:
            raise FailedError("names in no order")
        self.names = [names[place] for place in order]
        self.chunk_size = min(filter(None, (chunk_size, opened.get("chunk_size", 0))), default=0)
        self.data = bytearray(self.size)
        self.missing = [(0, self.size)] if self.size else []
        self.expected: dict[int, int] = {}
        self.damaged: Counter[int] = Counter()

    def tensors(self) -> dict[str, Tensor]:
        tensors = {}
        for name in self.names:
            dtype, shape, place = (self.entries[name][field] for field in ENTRY)
            tensors[name] = Tensor(dtype, tuple(shape), bytes(self.data[slice(*place)]), name)
        return tensors

    def keep(self, had: bytes, block: int, digests: bytes) -> None:
        """Keep the blocks of an earlier attempt that have the same digests."""
        self.data[: len(had)] = had[: self.size]
        blocks = cut([(0, self.size)], block)
        theirs = [digests[at : at + 8] for at in range(0, len(digests), 8)]
        pairs = zip(blocks, theirs, strict=True)
        self.missing = [
            at for at, mark in pairs if packets.digest(bytes(self.data[slice(*at)])) != mark
        ]

    def ask(self) -> list[Range]:
        """Return ranges to be fetched, whose frames are expected from now on."""
        ranges, self.missing = self.missing[:MOST_RANGES], self.missing[MOST_RANGES:]
        self.expected = dict(cut(ranges, self.chunk_size or self.size))
        return ranges

    def lose(self) -> None:
        self.missing += self.expected.items()
        self.expected = {}

    def take(self, frame: Packet) -> None:
        """Put the next frame where it belongs."""
        start, stop = next(iter(self.expected.items()), (-1, -1))
        place = frame.kind, frame.start, frame.start + len(frame.payload)
        if place != (packets.FRAME, start, stop):
            raise BrokenError("not the next frame of the last request")
        del self.expected[start]
        if frame.is_sound:
            self.data[start:stop] = frame.payload
            return
        self.missing.append((start, stop))
        self.damaged[start] += 1
        if self.damaged[start] > REPETITIONS:
            raise FailedError("a frame that arrives damaged again and again")


def cut(ranges: Iterable[Range], step: int) -> list[Range]:
    return [(at, min(at + step, end)) for start, end in ranges for at in range(start, end, step)]


class Stranger:
    """A receiver, which makes one request or download after another.

    It connects again where a connection breaks, if it `returns`, as over TCP. `on_packet` gives
    what arrives in the place of each packet.
    """

    def __init__(
        self,
        connect: Callable[[], socket.socket],
        returns: bool = False,
        on_packet: Callable[[Packet], Packet | None] = lambda packet: packet,
    ) -> None:
        self.connect, self.returns, self.on_packet = connect, returns, on_packet
        self.token = NOBODY
        self.connections = self.number = 0
        self.awaited = self.fetching = self.pinged = -1  # Numbers of requests.
        self.useful = time.monotonic()
        self.asked: list[str] = []
        self.body: Body | None = None
        self.sending, self.ended = Lock(), Event()
        self.greet()
        if returns:
            Thread(target=self._beat, daemon=True).start()

    def close(self) -> None:
        self.ended.set()
        self.sock.close()

    def greet(self) -> None:
        sock = self.connect()
        self.greeted = self.waits = False
        self.due = time.monotonic() + PING_AFTER
        self.connections += 1
        with self.sending:  # No beat goes first.
            self.sock = sock
            sock.sendall(greeting())

    def _beat(self) -> None:
        while not self.ended.wait(BEAT_AFTER):
            with suppress(OSError):
                self.send(message("Ping", 0, token=NOBODY))

    def insist(self, attempt: Callable[[], Any]) -> Any:
        """Make an attempt over one connection after another."""
        self.useful = time.monotonic()
        while True:
            try:
                if self.sock.fileno() < 0:
                    self.greet()
                return attempt()
            except (BrokenError, OSError) as broken:
                self.sock.close()
                if self.body is not None:
                    self.body.lose()
                if not self.returns or time.monotonic() - self.useful > RETURN_TIMEOUT:
                    raise FailedError(f"the connection broke: {broken}") from broken
            time.sleep(0.05)

    def send(self, data: bytes) -> None:
        with self.sending:
            self.sock.sendall(data)

    def ask(self, name: str, /, **fields: object) -> int:
        """Send a request, and return its number."""
        self.number, self.pinged = self.number % LAST_NUMBER + 1, -1
        self.asked.append(name)
        # A reader passes over fields that it does not know.
        self.send(message(name, self.number, unheard_of=[1], **fields))
        return self.number

    def call(self, name: str, /, **fields: object) -> Any:
        """Send a request, again over each new connection, and return its answer."""
        return self.insist(lambda: self.answer(self.ask(name, **fields)))

    def answer(self, number: int) -> dict[str, Any]:
        """Return the message that answers a request; what comes before it is passed over."""
        self.awaited = number
        while True:
            packet = self.step()
            if packet is not None and (packet.kind, packet.number) == (MESSAGE, number):
                self.useful = time.monotonic()
                return packet.message

    def read(self, sock: socket.socket, count: int) -> bytes:
        """Receive so many bytes; ask meanwhile whether the sender lives."""
        data = bytearray()
        while len(data) < count:
            now = time.monotonic()
            if now - self.useful > TIMEOUT:
                raise FailedError("nothing of use has come in time")
            if select.select([sock], [], [], max(0, self.due - now))[0]:
                if not (more := sock.recv(min(count - len(data), 1 << 20))):
                    raise BrokenError("the connection has ended")
                data += more
                self.waits, self.due = False, time.monotonic() + PING_AFTER
            elif self.waits:
                raise BrokenError("the sender is silent")
            else:
                self.pinged = self.ask("Ping", token=self.token)
                self.waits, self.due = True, now + PING_TIMEOUT
        return bytes(data)

    def step(self) -> Packet | None:
        """Return the next packet; none for one that is dealt with here."""
        packet = self.on_packet(read_packet(self.sock, self.read))
        if packet is None or (packet.kind != MESSAGE and self.greeted):
            return packet
        content = packet.message if packet.kind == MESSAGE else {"type": "a frame"}
        pinged = self.pinged if self.body is not None else -1
        open_numbers = self.awaited, self.fetching, pinged
        if not self.greeted and content["type"] != "Hello":
            raise BrokenError("no greeting")
        if content["type"] == "Hello":
            self.greeted = True
        elif packet.number == 0:
            raise BrokenError("an answer to a beat")
        elif content["type"] == "Refused" and packet.number in open_numbers:
            raise RefusedError(content["reason"])
        elif packet.number != pinged:
            return packet
        elif self.body is not None and content.get("answering", 0) != self.fetching:
            self.body.lose()
        return None

    def open(self, token: bytes, had: bytes = b"", chunk_size: int = 65536, eager: int = 0) -> Body:
        """Learn what a ref has on offer; a short body is then on its way."""
        self.token, self.body = token, None
        how = {"chunk_size": chunk_size, "digests": bool(had), "eager": eager}
        opened = self.call("Open", token=token, **how)
        self.body = body = Body(opened, chunk_size)
        if had:
            body.keep(had, opened["block"], opened["digests"])
        elif body.size <= eager and (chunk_size or not body.chunk_size):
            self.fetching = self.number
            body.ask()
        return body

    def fill(self) -> None:
        body = self.body
        assert body is not None
        while body.expected or body.missing:
            if not body.expected:
                how = {"ranges": body.ask(), "chunk_size": body.chunk_size}
                self.fetching = self.ask("Fetch", token=self.token, **how)
            packet = self.step()
            if packet is not None and packet.number == self.fetching:
                body.take(packet)
                self.useful = time.monotonic()

    def download(self, token: bytes, **options: Any) -> dict[str, Tensor]:
        try:
            body = self.open(token, **options)
            self.insist(self.fill)
            self.call("Close", token=token, ok=True)
        except FailedError as failure:
            with suppress(FailedError, BrokenError, OSError):
                self.answer(self.ask("Close", token=token, ok=False, reason=str(failure)))
            raise
        return body.tensors()


# Payloads.
WORDS: dict[str, Callable[[Any], object]] = {
    "int": lambda text: int(text, 16),
    "complex": lambda parts: complex(*parts),
    "torch.Size": lambda data: struct.unpack(f"<{len(data) // 8}q", data),
    "scalar": tuple,
}


def payload_of(tensors: dict[str, Tensor]) -> object:
    """Return the value of a payload; its tensors are those of the body, by name."""
    nodes = iter(msgspec.msgpack.decode(tensors["message"].data))
    value = value_of(nodes, tensors)
    if next(nodes, nodes) is not nodes:
        raise FailedError("a payload with nodes of no use")
    return value


def value_of(nodes: Iterator[Any], tensors: dict[str, Tensor]) -> object:
    """Return the value that the next nodes stand for."""
    node = next(nodes)
    if not isinstance(node, msgspec.msgpack.Ext):
        return node
    code, data = node.code, bytes(node.data)
    size = range(int.from_bytes(data, "little")) if code < 6 else ()
    if code in (4, 5):
        pairs = [(value_of(nodes, tensors), value_of(nodes, tensors)) for _ in size]
        return dict(pairs) if code == 4 else OrderedDict(pairs)
    if code < 4:
        return (list, tuple, set, frozenset)[code]([value_of(nodes, tensors) for _ in size])
    if code == 6:
        return data
    if code in (7, 8):
        return tensors[data.decode()]._replace(framework=("numpy", "pytorch")[code - 7])
    if code == 9 and data.decode() in WORDS:
        return WORDS[data.decode()](value_of(nodes, tensors))
    raise FailedError(f"a payload with the unknown node {node!r}")
