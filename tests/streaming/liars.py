"""Peers with right digests that do not keep to docs/internals/protocol.md, or send junk."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from queue import Queue
from typing import Any

from packets import FRAME, exactly, greeting, message, packed, read_packet

from flstream.streaming import Channel, Receiver
from flstream.streaming.settings import DEFAULT_LIMITS, Limits

NBYTES, PONG = 100_000, message("Pong", 999_999)
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


def layout_of(*entries: tuple[str, int, int]) -> bytes:
    """A layout of bytes: names, and where they are said to lie."""
    return json.dumps(
        {
            name: {"dtype": "U8", "shape": [stop - start], "data_offsets": [start, stop]}
            for name, start, stop in entries
        }
    ).encode()


OPENED: dict[str, dict[str, object]] = {
    "a layout that is none": {"layout": b"[" * 10_000},
    "a layout with a hole": {"layout": layout_of(("v", 0, 10), ("w", 20, NBYTES + 10))},
    "a layout without end": {"layout": layout_of(("w", 0, 2**62))},
    "a layout that does not fit": {"layout": layout_of(("w", 0, NBYTES - 16))},
    "chunks of an odd length": {"chunk_size": 17},
}
"""What a sender says of what it has, in place of the truth."""

# Of a request's number, and the first byte and the bytes of a frame.
FRAMES: dict[str, Callable[[int, int, bytes], bytes]] = {
    "bytes of elsewhere": lambda number, start, data: packed(FRAME, number, start + 16, data),
    "too few bytes": lambda number, start, data: packed(FRAME, number, start, data[:-16]),
    "too many bytes": lambda number, start, data: packed(FRAME, number, start, data + data),
    "bytes twice": lambda number, start, data: packed(FRAME, number, start, data) * 2,
    "bytes that never match": lambda number, start, data: (
        packed(FRAME, number, start, data)[:-9] + b"\1" + packed(FRAME, number, start, data)[-8:]
    ),
    "bytes of nobody": lambda number, start, data: packed(FRAME, number + 1, start, data),
    "encoded bytes unasked": lambda number, start, data: packed(3, number, start, data[:100]),
}
"""What a sender sends in place of a frame."""


class Sender:
    """A sender that does what a case of SENDERS says, on a thread, until either side ends it.

    Chatter sends `again` without end. In `told` is how the receiver closed the download.
    """

    def __init__(self, sock, case, nbytes=NBYTES, *, again=PONG, layout=b"", reason="no") -> None:
        self.told: Queue[tuple[bool, str]] = Queue()
        self._sock, self._case = sock, case
        self._opened = {"layout": layout or layout_of(("w", 0, nbytes)), **OPENED.get(case, {})}
        self._refusal = {"reason": "it was changed" if case == "a change at the end" else reason}
        self._again = again * (1 + (64 << 10) // len(again))
        self._thread = threading.Thread(target=self._run, name="liar", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._sock.close()

    def _run(self) -> None:
        with suppress(Exception):  # the other side is gone
            for packet in self._packets(self._sock):
                self._sock.sendall(packet)

    def _packets(self, sock: socket.socket) -> Iterator[bytes]:
        case, under_way = self._case, 0
        if case == "silence":
            exactly(sock, 1 << 30)
        if case == "an end":
            sock.shutdown(socket.SHUT_RDWR)
        if case == "junk":
            yield b"FLST" * 100
        if case != "no greeting":
            yield greeting(version=9) if case == "another version" else greeting()
        while True:
            request = read_packet(sock).message
            name, number = request["type"], request.get("number", 0)
            if name in ("Ping", "Close") and case == "a change at the end":
                yield message("Refused", number, **self._refusal)
            elif name == "Open":
                yield from self._answer(number)
            elif name == "Ping":
                yield message("Pong", number, answering=under_way)
            elif name == "Fetch":
                under_way = number
                yield from self._frames(request)
            elif name == "Close":
                self.told.put((request["ok"], request["reason"]))
                yield message("Closed", number)

    def _answer(self, number: int) -> Iterator[bytes]:
        while self._case == "chatter":
            yield self._again
        if self._case == "no message":
            yield packed(1, number, 0, b"\xc1")
        if self._case == "a refusal":
            yield message("Refused", number, **self._refusal)
        if self._case != "patience":
            yield message("Opened", number, **self._opened)

    def _frames(self, request: dict[str, Any]) -> Iterator[bytes]:
        number, size = request["number"], request["chunk_size"]
        frame = FRAMES.get(self._case, lambda *where: packed(FRAME, *where))
        while self._case == "late chatter":
            yield self._again
        for first, last in request["ranges"]:
            for start in range(first, last, size):
                yield frame(number, start, bytes(min(size, last - start)))


@contextmanager
def receiver_of(case: str, limits: Limits = DEFAULT_LIMITS, **options: Any) -> Iterator[Any]:
    ours, theirs = socket.socketpair()
    with (
        closing(Sender(theirs, case, **options)) as sender,
        Receiver(Channel(ours, "liar"), "liar", limits=limits) as receiver,
    ):
        yield receiver, sender
