"""A channel with faults chosen by a seed, for testing what has to survive them."""

from __future__ import annotations

import os
import random
import select
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from flstream.errors import AbortedError, ChannelClosedError
from flstream.streaming.wire import FRAME, HEADER_BYTES, Header
from flstream.transport.channel import AbortSignal, Channel, Deadline
from flstream.transport.splice import Pages
from flstream.transport.views import advance

Fault = Literal[
    "flipped payload bit",
    "flipped header bit",
    "truncated packet",
    "duplicated packet",
    "reordered packets",
    "dropped frame",
    "dropped reply",
    "damaged request",
    "dropped request",
    "death",
    "stall",
]
# Faults that strike once, at a byte; a new connection has none.
ENDS = ("death", "stall", "reset")
FAULTS: tuple[Fault, ...] = get_args(Fault)

_READ_BYTES = 256 << 10


class Faults:
    """Faults of the connections of one receiver.

    Args:
        fault: Kind of the faults; or "reset", which is a death of the connection alone.
        seed: Seed that decides which packets are hit, and where.
        rate: Share of the packets that are hit, from 0 to 1.
        ends_within: Most bytes before a death, a stall or a reset.

    Attributes:
        hits: Number of faults so far.
    """

    def __init__(
        self,
        fault: Fault | Literal["reset"],
        seed: int,
        *,
        rate: float = 0.1,
        ends_within: int = 1 << 20,
    ) -> None:
        self.hits = 0
        self.fault = fault
        self.random = random.Random(f"{fault}/{seed}")
        self.until_end = self.random.randrange(ends_within)
        self._rate = rate

    def strikes(self) -> bool:
        strikes = self.random.random() < self._rate
        self.hits += strikes
        return strikes


class FaultyChannel:
    """A receiver's channel that damages passing packets, and otherwise behaves as the real one.

    Args:
        channel: Channel without faults.
        faults: The faults.
    """

    def __init__(self, channel: Channel, faults: Faults) -> None:
        self.beats = channel.beats
        self._channel = channel
        self._faults = faults
        self._fault = faults.fault
        self._random = faults.random
        self._arrived = bytearray()
        self._passed = bytearray()
        self._held: bytes | None = None
        self._may_end = faults.fault in ENDS and not faults.hits

    def fileno(self) -> int:
        """Return the descriptor of the channel without faults."""
        return self._channel.fileno()

    def send_some(self, views: Sequence[memoryview], *, more: bool = False) -> int:
        """Send as much as fits, without faults."""
        return self._channel.send_some(views)

    def lend_some(self, pages: Pages) -> int:
        """Send as much as fits, without faults."""
        return self._channel.lend_some(pages)

    def send_file_some(self, fd: int, offset: int, count: int, *, immutable: bool) -> int:
        """Send as much of a file as fits, without faults."""
        return self._channel.send_file_some(fd, offset, count, immutable=immutable)

    def send(self, views: Sequence[memoryview], deadline: Deadline) -> None:
        """Send packets, or lose some of them."""
        data = bytearray().join(views)
        while data:
            packet = data[: HEADER_BYTES + Header.parse(data[:HEADER_BYTES], "receiver").length]
            del data[: len(packet)]
            if self._fault == "dropped request" and self._faults.strikes():
                continue
            if self._fault == "damaged request" and self._faults.strikes():
                self._flip(packet, 0)
            self._channel.send([memoryview(packet)], deadline)

    def receive_some(self, views: Sequence[memoryview]) -> int:
        """Receive what has passed."""
        if self._ended():
            return 0
        if not self._passed:
            self._let_pass()
        count = min(sum(map(len, views)), len(self._passed))
        if self._may_end:
            count = min(count, self._faults.until_end)
            self._faults.until_end -= count
        data, left = memoryview(bytes(self._passed[:count])), list(views)
        del self._passed[:count]
        while data:
            piece = data[: len(left[0])]
            left[0][: len(piece)] = piece
            left, data = advance(left, len(piece)), data[len(piece) :]
        return count

    def receive(
        self, views: Sequence[memoryview], deadline: Deadline, abort: AbortSignal | None = None
    ) -> None:
        """Fill the views without faults: these are messages without packets."""
        self._channel.receive(views, deadline, abort)

    def wait(self, seconds: float, abort: AbortSignal | None = None) -> bool:
        """Wait until something has passed, or may have."""
        if self._ended():
            # Bytes in the channel below will not pass any more.
            stopped = select.select([abort] if abort is not None else [], [], [], seconds)[0]
            if stopped:
                raise AbortedError("the transfer was called off")
            return False
        return bool(self._passed) or self._channel.wait(seconds, abort)

    def close(self) -> None:
        """Close the channel without faults."""
        self._channel.close()

    def _ended(self) -> bool:
        if not self._may_end or self._faults.until_end:
            return False
        self._faults.hits = 1
        if self._fault == "reset":
            with socket.socket(fileno=os.dup(self._channel.fileno())) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if self._fault != "stall":
            self._channel.close()
            raise ChannelClosedError("the peer closed the channel; its process has ended or died")
        return True

    def _let_pass(self) -> None:
        more = memoryview(bytearray(_READ_BYTES))
        self._arrived += more[: self._channel.receive_some([more])]
        while len(self._arrived) >= HEADER_BYTES:
            header = Header.parse(self._arrived[:HEADER_BYTES], "sender")
            size = HEADER_BYTES + header.length
            if len(self._arrived) < size:
                return
            packet = self._arrived[:size]
            del self._arrived[:size]
            self._passed += self._harmed(packet, header)

    def _harmed(self, packet: bytearray, header: Header) -> bytes:
        """Apply the fault to a packet, and return the bytes that arrive."""
        harm = self._harms().get(self._fault)
        frames_only = self._fault in ("dropped frame", "reordered packets")
        replies_only = self._fault == "dropped reply"
        spared = (frames_only and header.kind != FRAME) or (replies_only and header.kind == FRAME)
        if harm is None or spared or not self._faults.strikes():
            held, self._held = self._held, None
            return bytes(packet) + (held or b"")
        return harm(packet)

    def _harms(self) -> dict[Fault, Callable[[bytearray], bytes]]:
        return {
            "flipped payload bit": lambda packet: self._flip(packet, HEADER_BYTES),
            "flipped header bit": lambda packet: (
                self._flip(packet[:HEADER_BYTES], 0) + packet[HEADER_BYTES:]
            ),
            "truncated packet": lambda packet: bytes(packet[: self._random.randrange(len(packet))]),
            "duplicated packet": lambda packet: bytes(packet) * 2,
            "reordered packets": self._hold,
            "dropped frame": lambda packet: b"",
            "dropped reply": lambda packet: b"",
        }

    def _hold(self, packet: bytearray) -> bytes:
        """Keep a packet back until the next one has passed."""
        held, self._held = self._held, bytes(packet)
        return held or b""

    def _flip(self, packet: bytearray, start: int) -> bytes:
        if len(packet) > start:
            packet[self._random.randrange(start, len(packet))] ^= 1 << self._random.randrange(8)
        return bytes(packet)
