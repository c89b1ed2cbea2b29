"""Reading packets off a channel, and finding the next one after bytes that are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import xxhash

from flstream.errors import ProtocolError
from flstream.streaming.wire import HEADER_BYTES, MAGIC, Header
from flstream.transport.channel import Channel
from flstream.transport.views import split

# A stream that was cut somewhere is searched in pieces of this size.
_SEARCH_BYTES = 64 << 10
# A peer that sends more than this without a packet in it will not send one.
_MOST_JUNK = 256 << 20

Wait = Callable[[], bool]
"""Called while nothing is there to be read: waits, and tells whether anything came.

It raises when it has waited enough."""


class PacketReader:
    """The packets that arrive on a channel.

    A header carries a digest of its own. So where bytes were lost, changed or added, the next
    packet is found by searching for one, and what it is cannot be mistaken.

    Args:
        channel: what carries the bytes.
        peer: who sends them, for messages.

    Attributes:
        junk: bytes passed over so far because they were no packet.
    """

    def __init__(self, channel: Channel, peer: str) -> None:
        self.junk = 0
        self._channel = channel
        self._peer = peer
        self._ahead = bytearray()
        self._following = memoryview(bytearray(HEADER_BYTES))

    def header(self, wait: Wait) -> Header:
        """The header of the next packet; its payload is to be read or skipped next.

        Raises:
            ProtocolError: the peer sends bytes without end and no packet among them.
        """
        before = self.junk
        while self.junk - before <= _MOST_JUNK:
            self._read_ahead(HEADER_BYTES, wait)
            header = Header.parse(self._ahead[:HEADER_BYTES])
            if header is not None:
                del self._ahead[:HEADER_BYTES]
                return header
            self._search()
        raise ProtocolError(f"{self._peer} sent {self.junk - before} bytes that are no packets")

    def payload(self, views: Sequence[memoryview], wait: Wait) -> int | None:
        """Fill the views with what follows.

        Returns:
            The xxh3-64 of what came, or None if the packet ends before the views are full.
        """
        left = [view for view in views if len(view)]
        digest = xxhash.xxh3_64()
        heard = True
        while left:
            if not heard and self._is_cut_short():
                return None
            if self._ahead:
                count = min(len(left[0]), len(self._ahead))
                left[0][:count] = self._ahead[:count]
                del self._ahead[:count]
            else:
                count = self._receive(left) if heard else 0
            if count:
                # At once, piece by piece: the bytes are still in the processor's cache, and the
                # sender fills the channel meanwhile.
                come, left = split(left, count)
                for view in come:
                    digest.update(view)
                heard = True
            else:
                heard = wait() and heard
        return digest.intdigest()

    def _receive(self, views: Sequence[memoryview]) -> int:
        """Receive what is there: into the views, and what follows, in the same call, ahead.

        Most often that is the next header.
        """
        count = self._channel.receive_some([*views, self._following])
        over = count - sum(map(len, views))
        if over > 0:
            self._ahead += self._following[:over]
            return count - over
        return count

    def skip(self, length: int, wait: Wait) -> None:
        """Pass over what follows."""
        scratch = memoryview(bytearray(min(length, 1 << 20)))
        while length:
            count = min(length, len(scratch))
            if self.payload([scratch[:count]], wait) is None:
                return
            length -= count

    def _is_cut_short(self) -> bool:
        """Whether a new packet begins where a payload should go on, after a silence.

        A sender that was only slow goes on with the payload. One that has sent all it had, of which
        a part was lost, says nothing more until it is asked; then its answer comes.
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
        """Receive what is there, so that at most ``size`` bytes are ahead; say how many came."""
        if len(self._ahead) >= size:
            return 0
        view = memoryview(bytearray(size - len(self._ahead)))
        count = self._channel.receive_some([view])
        self._ahead += view[:count]
        return count

    def _search(self) -> None:
        """Drop what is ahead up to where a packet may begin."""
        # Most of what comes next will not be a packet either; it is fetched in one go if it is
        # there.
        self._receive_ahead(_SEARCH_BYTES)
        found = self._ahead.find(MAGIC, 1)
        # The last bytes may be the first ones of a packet.
        dropped = found if found >= 0 else len(self._ahead) - len(MAGIC) + 1
        del self._ahead[:dropped]
        self.junk += dropped
