"""A receiver that was written from docs/protocol.md alone, and knows nothing of flstream.

It fetches one thing into a file, and prints what it has seen as JSON::

    python stranger.py tcp HOST:PORT KEY RUN TOKEN OUT
    python stranger.py fd DESCRIPTOR TOKEN OUT

Tensors make a safetensors file, and a payload the ``repr`` of its value. No layout says which of
them it is; the options do.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import hmac
import json
import os
import select
import socket
import struct
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import xxhash

VERSION, MESSAGE, FRAME = 2, 1, 2
NOBODY = bytes(16)
HEADER = struct.Struct("<4sBB2sI16sQQQ4s")
NUMBER = struct.Struct("<Q")
LAST_NUMBER = 4294967295
LONGEST_MESSAGE = 16 << 20
DIGESTED_AT_ONCE = 16 << 20
SIZES = {"eager": 65536, "chunk-size": 65536, "request-size": 262144}
WINDOW, TIMEOUT, PING_AFTER, PING_TIMEOUT, BEAT_AFTER = 4, 60.0, 1.0, 5.0, 2.0
NUMPY = {f"{kind}{8 * size}": f"{kind.lower()}{size}" for kind in "IUF" for size in (1, 2, 4, 8)}
NUMPY |= {"BOOL": "?", "C64": "c8", "C128": "c16"}
WORDS: dict[str, Callable[[Any], object]] = {
    "complex": lambda parts: complex(*parts),
    "set": set,
    "frozenset": frozenset,
    "torch.Size": tuple,
}


class BrokenError(Exception):
    """The connection is of no more use; another one may be."""


class FailedError(Exception):
    """The download cannot succeed."""


class Packet(NamedTuple):
    """What comes over a connection, after its header was found sound."""

    kind: int
    request: int
    token: bytes
    start: int
    digest: int
    payload: bytes

    @property
    def sound(self) -> bool:
        return xxhash.xxh3_64_intdigest(self.payload) == self.digest


def packed(kind: int, request: int, token: bytes, start: int, payload: bytes) -> bytes:
    """Return the bytes of a packet."""
    digest = xxhash.xxh3_64_intdigest(payload)
    fields = (VERSION, kind, bytes(2), request, token, start, len(payload), digest, bytes(4))
    header = HEADER.pack(b"FLST", *fields)
    return header + NUMBER.pack(xxhash.xxh3_64_intdigest(header)) + payload


def message(name: str, request: int, token: bytes, /, **fields: object) -> bytes:
    """Return the bytes of a packet with a message."""
    content = {"type": name, **fields}
    return packed(MESSAGE, request, token, 0, msgspec.msgpack.encode(content))


def read_packet(read: Callable[[int], bytes], longest_frame: int) -> Packet:
    """Read a packet, of which `read` returns as many bytes as it is asked for."""
    header = read(64)
    if xxhash.xxh3_64_intdigest(header[:56]) != NUMBER.unpack(header[56:])[0]:
        raise BrokenError("a header that does not match its digest")
    fields = HEADER.unpack(header[:56])
    magic, version, kind, _, request, token, start, length, digest, _ = fields
    if version != VERSION:
        raise FailedError(f"the sender speaks version {version}")
    longest = {MESSAGE: LONGEST_MESSAGE, FRAME: longest_frame}.get(kind, -1)
    if magic != b"FLST" or length > longest:
        raise BrokenError("a header that makes no sense")
    return Packet(kind, request, token, start, digest, read(length))


def dial(address: str, key: bytes, run: str, role: bytes = b"receiver") -> socket.socket:
    """Connect over TCP, and prove on both sides that the key is known."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=5)
    try:
        name = hashlib.sha256(b"flstream token" + key).digest()[:8]
        own = b"FLSA\x01\0\0\0" + role.ljust(16, b"\0") + name + os.urandom(32)
        sock.sendall(own)
        theirs = exactly(sock, 32)

        def proof(side: bytes) -> bytes:
            text = b"flstream 1 " + side + b"\0" + own + theirs + run.encode()
            return hmac.digest(key, text, "sha256")

        sock.sendall(proof(b"dials"))
        if not hmac.compare_digest(exactly(sock, 32), proof(b"accepts")):
            raise FailedError("who listens there does not know the key")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        probes = {"TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in probes.items():
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    except BaseException:
        sock.close()
        raise
    sock.settimeout(None)
    return sock


def exactly(sock: socket.socket, count: int) -> bytes:
    """Receive so many bytes."""
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise BrokenError("the connection has ended")
        data += more
    return data


class Tensor(NamedTuple):
    """A tensor as its bytes; `framework` is given in a payload."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    name: str = ""
    framework: str = ""


def tensors_of(header: bytes, body: bytes) -> dict[str, Tensor]:
    """Return the tensors of a layout, and then the further names of tied ones."""
    layout = json.loads(header)
    tied = json.loads(layout.pop("__metadata__", {}).get("flstream.tied", "{}"))
    tensors = {}
    for name, entry in layout.items():
        start, stop = entry["data_offsets"]
        tensors[name] = Tensor(entry["dtype"], tuple(entry["shape"]), body[start:stop], name)
    return tensors | {name: tensors[own] for name, own in tied.items()}


def read_file(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file."""
    data = Path(path).read_bytes()
    end = 8 + NUMBER.unpack(data[:8])[0]
    return tensors_of(data[8:end], data[end:])


def payload_of(tensors: dict[str, Tensor]) -> object:
    """Return the value of a payload; its tensors are those of the body, by name."""
    if list(tensors) == ["piece"]:
        structure, saved = msgspec.msgpack.decode(tensors["piece"].data)
        pieces = {}
        for name, data in saved.items():
            end = 8 + NUMBER.unpack(data[:8])[0]
            [(inner, tensor)] = tensors_of(data[8:end], data[end:]).items()
            if inner != "t":  # Bytes, of the dtype that they are named after.
                tensor = tensor._replace(dtype=inner, shape=tensor.shape[:-1])
            pieces[name] = tensor
        tensors = pieces
    else:
        structure = tensors["message"].data
    if isinstance(structure, bytes):
        structure = msgspec.msgpack.decode(structure)
    version, nodes = structure
    if version != 1:
        raise FailedError(f"a payload of version {version}")
    rest = iter(nodes)
    value = value_of(rest, tensors)
    if next(rest, rest) is not rest:
        raise FailedError("a payload with nodes of no use")
    return value


def value_of(nodes: Iterator[Any], tensors: dict[str, Tensor]) -> object:
    """Return the value that the next nodes stand for."""
    match next(nodes):
        case ["c", "list" | "tuple" as kind, int(size)]:
            values = [value_of(nodes, tensors) for _ in range(size)]
            return values if kind == "list" else tuple(values)
        case ["c", "dict" | "odict" as kind, int(size)]:
            pairs = [(next(nodes), value_of(nodes, tensors)) for _ in range(size)]
            return dict(pairs) if kind == "dict" else OrderedDict(pairs)
        case ["d", str(word)] if word in WORDS:
            return WORDS[word](value_of(nodes, tensors))
        case ["t", str(name), str(framework)]:
            return tensors[name]._replace(name=name, framework=framework)
        case ["s", str(dtype), bytes(data)]:
            import numpy as np  # Only here: it takes longer to import than most downloads.

            return np.frombuffer(data, NUMPY[dtype])[0]
        case ["i", bytes(data)]:
            return int.from_bytes(data, "little", signed=True)
        case ["b", bytes(data)]:
            return data
        case list() as node:
            raise FailedError(f"a payload with the unknown node {node!r}")
        case plain:
            return plain


class Body:
    """What arrives, in a file of its own until all of it is there."""

    def __init__(self, how: argparse.Namespace, opened: dict[str, Any]) -> None:
        self.path, self.header, self.payload = Path(how.out), opened["layout"], how.payload
        layout = json.loads(self.header)
        layout.pop("__metadata__", None)
        ends = [entry["data_offsets"] for entry in layout.values()]
        self.size = max((stop for _, stop in ends), default=0)
        starts = [0, *(stop for _, stop in ends)]
        if any(start != before for (start, _), before in zip(ends, starts, strict=False)):
            raise FailedError("a layout with a hole")
        names = list(tensors_of(self.header, b""))
        self.names = [names[place] for place in opened.get("order") or range(len(names))]
        self.chunk_size = min(how.chunk_size, opened.get("chunk_size") or how.chunk_size)
        self.missing = set(range(0, self.size, self.chunk_size or self.size or 1))
        self.damaged: dict[int, int] = {}
        self.part = self.path.with_name(self.path.name + ".part")
        self.earlier = self.part.exists()
        self.prefix = NUMBER.pack(len(self.header)) + self.header
        self.file = open(self.part, "r+b" if self.earlier else "w+b")  # noqa: SIM115
        self.file.truncate(len(self.prefix) + self.size)
        self.put(-len(self.prefix), self.prefix)

    def put(self, start: int, data: bytes) -> None:
        self.file.seek(len(self.prefix) + start)
        self.file.write(data)

    def get(self, start: int, stop: int) -> bytes:
        self.file.seek(len(self.prefix) + start)
        return self.file.read(stop - start)

    def finish(self) -> None:
        if self.payload:
            value = payload_of(tensors_of(self.header, self.get(0, self.size)))
            self.file.seek(0)
            self.file.truncate()
            self.file.write(repr(value).encode())
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self.part.rename(self.path)


@dataclass
class Asked:
    """A request that is not wholly answered; frames from `at` to `stop` are to come."""

    since: float
    at: int = 0
    stop: int = 0


class Stranger:
    """A receiver of one thing, over one connection after another."""

    def __init__(self, dial: Callable[[], socket.socket], how: argparse.Namespace) -> None:
        self.dial, self.how, self.instance = dial, how, os.urandom(16)
        self.beats = BEAT_AFTER if how.kind == "tcp" else float("inf")
        self.number = 0
        self.ref = bytes.fromhex(how.token)
        self.part: dict[str, object] | None = None
        if how.names:
            self.part = {"of": self.ref, "names": json.loads(how.names)}
        elif how.specs:
            self.part = {"of": NOBODY, "specs": json.loads(how.specs)}
        self.token = os.urandom(16) if self.part else self.ref
        self.body: Body | None = None
        self.at_once, self.finished = False, False
        self.seen: dict[str, Any] = {"connections": 0, "bytes": 0, "damaged": 0}
        self.open_connection()

    # The connection.
    def open_connection(self) -> None:
        self.sock, self.greeted, self.pinged = self.dial(), False, False
        self.asked: dict[int, Asked] = {}
        self.answers: dict[int, dict[str, Any]] = {}
        self.due = time.monotonic() + PING_AFTER
        self.next_beat = time.monotonic() + self.beats
        self.seen["connections"] += 1
        fields = {"version": VERSION, "instance": self.instance, "capabilities": ["unheard-of"]}
        self.sock.sendall(message("Hello", 0, NOBODY, **fields))

    def ask(self, name: str, **fields: object) -> int:
        """Send a request, and return its number."""
        self.number = self.number % LAST_NUMBER + 1
        self.asked[self.number] = Asked(time.monotonic())
        # A reader passes over fields that it does not know.
        fields = {"token": self.token, "request": self.number, "unheard_of": [1], **fields}
        self.sock.sendall(message(name, self.number, self.token, **fields))
        return self.number

    def call(self, name: str, **fields: object) -> dict[str, Any]:
        """Send a request, and return its answer."""
        number = self.ask(name, **fields)
        while number not in self.answers:
            self.step()
        return self.answers.pop(number)

    def read(self, count: int) -> bytes:
        """Receive so many bytes; send pings and beats meanwhile."""
        data = bytearray()
        while len(data) < count:
            now = time.monotonic()
            if now >= self.next_beat:
                beat = message("Ping", 0, NOBODY, token=NOBODY, request=0)
                self.sock.sendall(beat)
                self.next_beat = now + self.beats
            if now >= self.due:
                if self.pinged:
                    raise BrokenError("the sender is silent")
                self.ask("Ping")
                self.pinged, self.due = True, now + PING_TIMEOUT
            if any(now - asked.since > TIMEOUT for asked in self.asked.values()):
                raise FailedError("a request was not answered in time")
            wait = max(0, min(self.due, self.next_beat) - now)
            if select.select([self.sock], [], [], wait)[0]:
                more = self.sock.recv(min(count - len(data), 1 << 20))
                if not more:
                    raise BrokenError("the connection has ended")
                data += more
                self.pinged, self.due = False, time.monotonic() + PING_AFTER
        return bytes(data)

    def step(self) -> None:
        """Read a packet, and do what follows from it."""
        packet = read_packet(self.read, 1 << 30)
        if packet.kind == FRAME and self.greeted:
            return self.take(packet)
        if not packet.sound:
            raise BrokenError("a message that does not match its digest")
        content = msgspec.msgpack.decode(packet.payload)
        name, number = content["type"], packet.request
        if not self.greeted:
            if name != "Hello":
                raise BrokenError("no greeting")
            if content["version"] != VERSION:
                raise FailedError(f"the sender speaks version {content['version']}")
            self.greeted = True
        elif packet.token != self.token or number not in self.asked:
            return None
        elif name == "Refused":
            raise FailedError(content["reason"])
        else:
            if name == "Pong":
                before = list(self.asked)[: list(self.asked).index(number)]
                if set(before) - {0, *content["requests"]}:
                    raise BrokenError("an answer was lost")
            del self.asked[number]
            self.answers[number] = content
        return None

    def close(self) -> None:
        """Close what is open."""
        self.sock.close()
        if self.body is not None:
            self.body.file.close()

    # The download.
    def take(self, frame: Packet) -> None:
        """Put a frame where it belongs."""
        asked, body = self.asked.get(frame.request), self.body
        if asked is None or body is None or frame.token != self.token:
            return
        native = not body.chunk_size
        length = min(body.chunk_size, asked.stop - asked.at)
        if frame.start != asked.at or (len(frame.payload) != length and not native):
            raise BrokenError("not the next frame of its request")
        asked.at = asked.stop if native else asked.at + length
        if asked.at == asked.stop:
            del self.asked[frame.request]
        if frame.start not in body.missing:
            return
        if not frame.sound:
            self.seen["damaged"] += 1
            body.damaged[frame.start] = body.damaged.get(frame.start, 0) + 1
            if body.damaged[frame.start] > 5:
                raise FailedError("a chunk that arrives damaged again and again")
            self.fetch(frame.start, body.size if native else frame.start + length, urgent=True)
            return
        start = 8 + NUMBER.unpack(frame.payload[:8])[0] if native else 0
        body.put(frame.start, frame.payload[start:])
        body.missing.remove(frame.start)
        self.useful, self.delay = time.monotonic(), 0.0
        self.seen["bytes"] += len(frame.payload) - start

    def fetch(self, start: int, stop: int, urgent: bool = False) -> None:
        assert self.body is not None
        size = self.body.chunk_size
        number = self.ask("Fetch", start=start, stop=stop, chunk_size=size, urgent=urgent)
        self.asked[number].at, self.asked[number].stop = start, stop

    def open(self) -> Body:
        """Learn the layout, with a small body."""
        eager = self.how.eager if self.how.chunk_size else 0
        fields = {"eager": eager, "chunk_size": self.how.chunk_size}
        opened = self.call("Open", **fields, part=self.part)
        number = self.number
        self.body = body = Body(self.how, opened)
        if 0 < body.size <= eager:
            self.asked[number] = Asked(time.monotonic(), 0, body.size)
            while body.missing and number in self.asked:
                self.step()
            self.at_once = not body.missing
        return body

    def resume(self, body: Body) -> None:
        """Count those chunks as arrived that an earlier attempt has left in the file."""
        body.earlier = False
        step = max(1, DIGESTED_AT_ONCE // body.chunk_size) * body.chunk_size
        for start in range(0, body.size, step):
            stop = min(start + step, body.size)
            fields = {"start": start, "stop": stop, "chunk_size": body.chunk_size}
            digests = self.call("Digest", **fields)["digests"]
            for place, chunk in enumerate(range(start, stop, body.chunk_size)):
                data = body.get(chunk, min(chunk + body.chunk_size, stop))
                if xxhash.xxh3_64_intdigest(data) == NUMBER.unpack_from(digests, 8 * place)[0]:
                    body.missing.discard(chunk)

    def fetch_missing(self, body: Body) -> None:
        """Keep the window full until nothing is missing."""
        waiting = sorted(body.missing)
        chunk_size = body.chunk_size or body.size
        while body.missing:
            while waiting and len(self.asked) < WINDOW:
                start = stop = waiting[0]
                while waiting and waiting[0] == stop:
                    if stop > start and stop + chunk_size - start > self.how.request_size:
                        break
                    stop = min(waiting.pop(0) + chunk_size, body.size)
                self.fetch(start, stop)
            self.step()

    def attempt(self) -> None:
        """Do what is left to be done over this connection."""
        body = self.body or self.open()
        if body.earlier and body.chunk_size and body.missing:
            self.resume(body)
        if not self.finished:
            self.fetch_missing(body)
            if not self.at_once:
                self.call("Ping")
            body.finish()
            self.finished = True
            self.seen["names"] = body.names
        self.call("Close", ok=True, reason="")

    def download(self) -> dict[str, Any]:
        """Fetch it all, over as many connections as that takes."""
        self.useful, self.delay = time.monotonic(), 0.0
        while True:
            try:
                if self.sock.fileno() < 0:
                    self.open_connection()
                self.attempt()
                return self.seen
            except FailedError as failure:
                with contextlib.suppress(FailedError, BrokenError, OSError):
                    if self.greeted:
                        self.call("Close", ok=False, reason=str(failure))
                raise
            except (BrokenError, OSError) as broken:
                self.sock.close()
                again = self.how.kind == "tcp" and time.monotonic() - self.useful < 10
                if not again:
                    if self.finished:
                        return self.seen
                    raise FailedError(f"the connection broke: {broken}") from broken
            select.select([], [], [], self.delay)
            self.delay = min(1.0, 2 * self.delay or 0.05)


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    parser = argparse.ArgumentParser(description="Fetch one thing.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    tcp, pair = kinds.add_parser("tcp"), kinds.add_parser("fd")
    for name in ("address", "key", "run"):
        tcp.add_argument(name)
    pair.add_argument("descriptor", type=int)
    for kind in (tcp, pair):
        kind.add_argument("token")
        kind.add_argument("out")
        kind.add_argument("--names", help="JSON: the names of the tensors that are wanted")
        kind.add_argument("--specs", help="JSON: [[name, round, tags], ...]")
        kind.add_argument("--payload", action="store_true")
        for option, value in SIZES.items():
            kind.add_argument(f"--{option}", type=int, default=value)
    how = parser.parse_args(arguments)

    def connect() -> socket.socket:
        if how.kind == "fd":
            return socket.socket(fileno=how.descriptor)
        return dial(how.address, bytes.fromhex(how.key), how.run)

    try:
        with contextlib.closing(Stranger(connect, how)) as receiver:
            print(json.dumps(receiver.download()))
    except (FailedError, BrokenError, OSError) as failure:
        print(f"{type(failure).__name__}: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
