"""Peers that do not keep to docs/protocol.md, though their digests are right, or send junk."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from queue import Queue
from typing import Any

from packets import FRAME, VERSION, exactly, message, packed, read_packet

NBYTES = 100_000
# What frames of liars have.
BYTES = (0, 1)
SENDERS: dict[str, tuple[str, ...]] = {
    "the truth": (),
    "silence": ("ChannelClosedError",),
    "patience": ("DeadlineError",),
    "an end": ("ChannelClosedError",),
    "junk": ("BrokenStreamError",),
    "no greeting": ("BrokenStreamError",),
    "another version": ("ProtocolError",),
    "no message": ("ProtocolError",),
    "a refusal": ("RefusedError",),
    "a layout that is none": ("ProtocolError",),
    "a layout with a hole": ("ProtocolError",),
    "a layout without end": ("ProtocolError", "LayoutError"),
    "a layout that does not fit": ("LayoutError",),
    "names in no order": ("ProtocolError",),
    "chunks of an odd length": ("ProtocolError",),
    "bytes of elsewhere": ("BrokenStreamError",),
    "too few bytes": ("BrokenStreamError",),
    "too many bytes": ("BrokenStreamError",),
    "bytes twice": ("BrokenStreamError",),
    "bytes that never match": ("IntegrityError",),
    "bytes of nobody": ("DeadlineError", "ChannelClosedError", "BrokenStreamError"),
    "encoded bytes unasked": ("BrokenStreamError",),
    "chatter": ("DeadlineError", "ProtocolError"),
    "late chatter": ("DeadlineError", "ProtocolError"),
    "a change at the end": ("RefusedError",),
}
"""What senders say, and the errors that their receivers get."""
WAITED_FOR = ("silence", "patience", "bytes of nobody", "chatter", "late chatter")
"""Senders that are given up after a time."""

RECEIVERS = (
    "an honest one",
    "silence",
    "an end",
    "junk",
    "no greeting",
    "another version",
    "no message",
    "an answer",
    "a damaged request",
    "bytes beyond the end",
    "chunks of an odd length",
    "a failure",
    "greed",
)
"""What receivers do."""


def greeting(version: int = VERSION) -> bytes:
    """What either side says first."""
    return message("Hello", 0, version=version, instance=os.urandom(16))


def layout_of(*entries: tuple[str, int, int]) -> bytes:
    """A layout of bytes: names, and where they are said to lie."""
    return json.dumps(
        {
            name: {"dtype": "U8", "shape": [stop - start], "data_offsets": [start, stop]}
            for name, start, stop in entries
        }
    ).encode()


class Liar:
    """A peer that does what it does on a thread of its own, until either side ends it."""

    def __init__(self, sock: socket.socket, case: str) -> None:
        self._sock = sock
        self._case = case
        self._thread = threading.Thread(target=self._run, name="liar", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._sock.close()

    def _run(self) -> None:
        raise NotImplementedError


class Sender(Liar):
    """A sender that answers.

    Args:
        sock: Its end of the connection.
        case: What it does: see :data:`SENDERS`.
        nbytes: Length of the body that it has.
        again: What it sends without end, once it is asked for the layout or for bytes.
        layout: Layout that it states.
        reason: Why it refuses.

    Attributes:
        told: How the receiver closed the download, once it has.
    """

    def __init__(
        self,
        sock: socket.socket,
        case: str,
        *,
        nbytes: int = NBYTES,
        again: bytes = message("Pong", 999_999),
        layout: bytes = b"",
        reason: str = "no",
    ) -> None:
        self.told: Queue[tuple[bool, str]] = Queue()
        self._layout = layout or layout_of(("w", 0, nbytes))
        self._reason = reason
        self._again = again * (1 + (64 << 10) // len(again))
        super().__init__(sock, case)

    def _run(self) -> None:
        with suppress(Exception):  # the receiver is gone
            for packet in self._packets():
                self._sock.sendall(packet)

    def _requests(self) -> Iterator[dict[str, Any]]:
        while True:
            yield read_packet(self._sock).message

    def _packets(self) -> Iterator[bytes]:
        case = self._case
        if case == "silence":
            exactly(self._sock, 1 << 30)
        if case == "an end":
            self._sock.shutdown(socket.SHUT_RDWR)
        if case == "junk":
            yield b"FLST" * 100
        if case != "no greeting":
            yield greeting(9 if case == "another version" else VERSION)
        under_way = 0
        for asked in self._requests():
            name, number = asked["type"], asked.get("number", 0)
            match name:
                case "Open":
                    yield from self._opened(number)
                case "Ping" if case == "a change at the end":
                    yield message("Refused", number, reason="it was changed")
                case "Ping":
                    yield message("Pong", number, answering=under_way)
                case "Fetch":
                    under_way = number
                    yield from self._frames(asked)
                case "Close" if case == "a change at the end":
                    yield message("Refused", number, reason="it was changed")
                case "Close":
                    self.told.put((asked["ok"], asked["reason"]))
                    yield message("Closed", number)

    def _opened(self, number: int) -> Iterator[bytes]:
        layouts = {
            "a layout that is none": b"[" * 10_000,
            "a layout with a hole": layout_of(("v", 0, 10), ("w", 20, NBYTES + 10)),
            "a layout without end": layout_of(("w", 0, 2**62)),
            "a layout that does not fit": layout_of(("w", 0, NBYTES - 16)),
        }
        if self._case == "patience":
            return
        if self._case == "no message":
            yield packed(1, number, 0, b"\xc1")
        if self._case == "a refusal":
            yield message("Refused", number, reason=self._reason)
        while self._case == "chatter":
            yield self._again
        content = layouts.get(self._case, self._layout)
        size = 17 if self._case == "chunks of an odd length" else 0
        order = [1] if self._case == "names in no order" else []
        yield message("Opened", number, layout=content, chunk_size=size, order=order)

    def _frames(self, asked: dict[str, Any]) -> Iterator[bytes]:
        number, size = asked["number"], asked["chunk_size"]
        while self._case == "late chatter":
            yield self._again
        for first, last in asked["ranges"]:
            for start in range(first, last, size):
                yield self._frame(number, start, bytes(min(size, last - start)))

    def _frame(self, number: int, start: int, data: bytes) -> bytes:
        frame = packed(FRAME, number, start, data)
        match self._case:
            case "bytes of elsewhere":
                return packed(FRAME, number, start + 16, data)
            case "too few bytes":
                return packed(FRAME, number, start, data[:-16])
            case "too many bytes":
                return packed(FRAME, number, start, data + data)
            case "bytes twice":
                return frame + frame
            case "bytes that never match":
                return frame[:-9] + b"\1" + frame[-8:]
            case "bytes of nobody":
                return packed(FRAME, number + 1, start, data)
            case "encoded bytes unasked":
                return packed(3, number, start, data[:100])
        return frame


class Receiver(Liar):
    """A receiver that does one thing, and then reads what comes."""

    def __init__(self, sock: socket.socket, case: str, token: bytes) -> None:
        self._token = token
        super().__init__(sock, case)

    def _run(self) -> None:
        with suppress(OSError):
            self._sock.sendall(self._said())
            if self._case == "an end":
                self._sock.shutdown(socket.SHUT_RDWR)
            while self._case != "greed" and self._sock.recv(1 << 16):
                pass

    def _said(self) -> bytes:
        def fetch(start: int = 0, stop: int = 48_000, chunk_size: int = 4096) -> bytes:
            ranges = [(start, stop)]
            return message("Fetch", 1, token=self._token, ranges=ranges, chunk_size=chunk_size)

        def close(ok: bool, reason: str) -> bytes:
            return message("Close", 9, token=self._token, ok=ok, reason=reason)

        match self._case:
            case "silence" | "an end":
                return greeting()
            case "junk":
                return greeting() + b"FLST" * 100
            case "no greeting":
                return fetch()
            case "another version":
                return greeting(9)
            case "no message":
                return greeting() + packed(1, 1, 0, b"\xc1")
            case "an answer":
                return greeting() + message("Pong", 1)
            case "a damaged request":
                return greeting() + fetch()[:-1] + b"?"
            case "bytes beyond the end":
                return greeting() + fetch(stop=2**40)
            case "chunks of an odd length":
                return greeting() + fetch(chunk_size=17)
            case "a failure":
                return greeting() + close(False, "no\x1b[2J")
            case "greed":
                return greeting() + b"".join(fetch() for _ in range(200))
            case _:
                return greeting() + fetch() + close(True, "")
