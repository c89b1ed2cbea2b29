"""Reading packets from a channel, and finding the next one after bytes that are not a packet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import xxhash

from flstream.errors import ProtocolError
from flstream.streaming.wire import HEADER_BYTES, MAGIC, Header
from flstream.transport.channel import Channel
from flstream.transport.views import split

FALSE_BEGINNING = 256
"""Bytes of junk as which it counts where a packet only seems to begin: to look takes as long."""

# Bytes that are searched at a time for the next packet, after a loss.
_SEARCH_BYTES = 64 << 10
# Most bytes without a packet in them that a peer may send, beside those of a frame whose header was
# lost.
_MOST_JUNK = 16 << 20

Wait = Callable[[], bool]
"""Function called when nothing can be read: it waits, and returns whether anything came.

It raises an error when the time to wait is used up.
"""


class PacketReader:
    """The packets that arrive on a channel.

    A header has a digest of its own. So where bytes were lost, changed or added, the next packet is
    found by searching for one, and other bytes are not mistaken for it.

    Args:
        channel: Channel that carries the bytes.
        peer: Name of the sender, for messages.
        before_receiving: Called again and again while bytes come. What it raises ends that.

    Attributes:
        junk: Number of bytes skipped so far that were not a packet.
        longest_frame: Bytes of the longest frame that may come.
    """

    def __init__(
        self, channel: Channel, peer: str, before_receiving: Callable[[], None] = lambda: None
    ) -> None:
        self.junk = 0
        self.longest_frame = 0
        self._before_receiving = before_receiving
        self._channel = channel
        self._peer = peer
        self._ahead = bytearray()
        self._following = memoryview(bytearray(HEADER_BYTES))

    def header(self, wait: Wait) -> Header:
        """Return the header of the next packet, whose payload is to be read or skipped next.

        Raises:
            ProtocolError: The peer keeps sending bytes that are not a packet.
        """
        before = self.junk
        counted = 0
        while counted <= _MOST_JUNK + self.longest_frame:
            self._read_ahead(HEADER_BYTES, wait)
            header = Header.parse(self._ahead[:HEADER_BYTES])
            if header is not None:
                del self._ahead[:HEADER_BYTES]
                return header
            counted += FALSE_BEGINNING + self._search()
        raise ProtocolError(f"{self._peer} sent {self.junk - before} bytes that are no packets")

    def payload(self, views: Sequence[memoryview], wait: Wait) -> int | None:
        """Fill the views with the payload.

        Returns:
            The xxh3-64 of its bytes, or None if the packet ends before the views are full.
        """
        left = [view for view in views if len(view)]
        digest = xxhash.xxh3_64()
        has_input = True
        while left:
            if not has_input and self._is_cut_short():
                return None
            if self._ahead:
                count = min(len(left[0]), len(self._ahead))
                left[0][:count] = self._ahead[:count]
                del self._ahead[:count]
            else:
                count = self._receive(left) if has_input else 0
            if count:
                # Digested at once, piece by piece: the bytes are still in the processor's cache,
                # and the sender fills the channel meanwhile.
                come, left = split(left, count)
                for view in come:
                    digest.update(view)
                has_input = True
            else:
                has_input = wait() and has_input
        return digest.intdigest()

    def _receive(self, views: Sequence[memoryview]) -> int:
        """Receive what has arrived: into the views, and in the same call what follows them.

        Most often that is the next header.
        """
        self._before_receiving()
        count = self._channel.receive_some([*views, self._following])
        over = count - sum(map(len, views))
        if over > 0:
            self._ahead += self._following[:over]
            return count - over
        return count

    def skip(self, length: int, wait: Wait) -> None:
        """Skip the next ``length`` bytes."""
        scratch = memoryview(bytearray(min(length, 1 << 20)))
        while length:
            count = min(length, len(scratch))
            if self.payload([scratch[:count]], wait) is None:
                return
            length -= count

    def _is_cut_short(self) -> bool:
        """Return whether a new packet begins where a payload should continue, after a silence.

        A sender that was only slow continues the payload. One that has sent everything, of which a
        part was lost, sends nothing more until it is asked; then its answer comes.
        """
        self._receive_ahead(HEADER_BYTES)
        if len(self._ahead) >= HEADER_BYTES:
            return Header.parse(self._ahead[:HEADER_BYTES]) is not None
        return False

    def _read_ahead(self, size: int, wait: Wait) -> None:
        while len(self._ahead) < size:
            if not self._receive_ahead(size):
                wait()

    def _receive_ahead(self, size: int) -> int:
        """Receive what has arrived, up to ``size`` bytes ahead of the reader.

        Returns:
            The number of bytes received.
        """
        if len(self._ahead) >= size:
            return 0
        self._before_receiving()
        view = memoryview(bytearray(size - len(self._ahead)))
        count = self._channel.receive_some([view])
        self._ahead += view[:count]
        return count

    def _search(self) -> int:
        """Drop the bytes received ahead up to where a packet may begin, and return their number."""
        # Most of the next bytes will not be a packet either; they are received in one call.
        self._receive_ahead(_SEARCH_BYTES)
        found = self._ahead.find(MAGIC, 1)
        # The last bytes may be the first ones of a packet.
        dropped = found if found >= 0 else len(self._ahead) - len(MAGIC) + 1
        del self._ahead[:dropped]
        self.junk += dropped
        return dropped
