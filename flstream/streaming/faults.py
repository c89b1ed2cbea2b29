"""A channel with faults chosen by a seed, for testing what has to survive them."""

from __future__ import annotations

import random
import select
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
FAULTS: tuple[Fault, ...] = get_args(Fault)

_READ_BYTES = 256 << 10


class FaultyChannel:
    """A receiver's channel that damages passing packets, and otherwise behaves as the real one.

    Args:
        channel: Channel without faults.
        fault: Kind of the faults.
        seed: Seed that decides which packets are hit, and where.
        rate: Share of the packets that are hit, from 0 to 1.
        death_within: Most bytes before a death or a stall.

    Attributes:
        hits: Number of faults so far.
    """

    def __init__(
        self,
        channel: Channel,
        fault: Fault,
        seed: int,
        *,
        rate: float = 0.1,
        death_within: int = 1 << 20,
    ) -> None:
        self.hits = 0
        self._channel = channel
        self._fault = fault
        self._random = random.Random(f"{fault}/{seed}")
        self._rate = rate
        self._arrived = bytearray()
        self._passed = bytearray()
        self._held: bytes | None = None
        self._until_end = self._random.randrange(death_within)

    def fileno(self) -> int:
        """Return the descriptor of the channel without faults."""
        return self._channel.fileno()

    def send_some(self, views: Sequence[memoryview]) -> int:
        """Send as much as fits, without faults."""
        return self._channel.send_some(views)

    def lend_some(self, pages: Pages) -> int:
        """Send as much as fits, without faults."""
        return self._channel.lend_some(pages)

    def send_file_some(self, fd: int, offset: int, count: int) -> int:
        """Send as much of a file as fits, without faults."""
        return self._channel.send_file_some(fd, offset, count)

    def send(self, views: Sequence[memoryview], deadline: Deadline) -> None:
        """Send a packet, or lose it."""
        packet = bytearray().join(views)
        if self._fault == "dropped request" and self._strikes():
            return
        if self._fault == "damaged request" and self._strikes():
            self._flip(packet, 0)
        self._channel.send([memoryview(packet)], deadline)

    def receive_some(self, views: Sequence[memoryview]) -> int:
        """Receive what has passed."""
        if self._ended():
            return 0
        if not self._passed:
            self._let_pass()
        count = min(sum(map(len, views)), len(self._passed))
        if self._fault in ("death", "stall"):
            count = min(count, self._until_end)
            self._until_end -= count
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
        if self._until_end:
            return False
        self.hits = 1
        if self._fault == "death":
            self._channel.close()
            raise ChannelClosedError("the peer closed the channel; its process has ended or died")
        return self._fault == "stall"

    def _let_pass(self) -> None:
        more = memoryview(bytearray(_READ_BYTES))
        self._arrived += more[: self._channel.receive_some([more])]
        while len(self._arrived) >= HEADER_BYTES:
            header = Header.parse(self._arrived[:HEADER_BYTES])
            assert header is not None, "the sound channel carries sound packets"
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
        if harm is None or spared or not self._strikes():
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

    def _strikes(self) -> bool:
        strikes = self._random.random() < self._rate
        self.hits += strikes
        return strikes
