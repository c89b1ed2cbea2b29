"""The packets that arrive on one connection, each read by the download that it is for.

Downloads of several threads may share the connection. One of them at a time reads. When the header
of another one's packet comes, that one has its turn, and receives the payload to where it belongs:
nothing is kept in between.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import xxhash

from flstream.errors import BrokenStreamError, ChannelClosedError, StreamingError
from flstream.streaming import wire
from flstream.streaming.wire import HEADER_BYTES, Header
from flstream.transport.channel import AbortSignal, Channel, Deadline, Signal
from flstream.transport.views import split

if TYPE_CHECKING:
    from flstream.streaming.exchange import Exchange


# Bytes that are read beyond what is waited for: a small message, or the next header.
_AHEAD_BYTES = 4 << 10
# Bytes of a payload of no use that are read at a time.
_SKIPPED_BYTES = 1 << 20


class Listener(Protocol):
    """Who waits for the packets of a channel, and decides how long."""

    def wait(self) -> None:
        """Wait for bytes; raise an error when the time to wait is used up."""
        ...

    def check(self) -> None:
        """Raise an error if nothing more is to be received, also while bytes keep coming."""
        ...


class PacketReader:
    """The packets that arrive on a channel.

    What is left of a payload by a reader that was interrupted is skipped before the next packet.

    Args:
        channel: Channel that carries the bytes.
        peer: Name of the sender, for messages.

    Attributes:
        left: Bytes of the present payload that were not read.
    """

    def __init__(self, channel: Channel, peer: str) -> None:
        self._channel = channel
        self._peer = peer
        self.left = 0
        self._ahead = bytearray()
        self._following = memoryview(bytearray(_AHEAD_BYTES))

    def header(self, listener: Listener) -> Header:
        """Return the header of the next packet, whose payload is to be read next.

        Raises:
            BrokenStreamError: What comes is no packet.
        """
        if self.left:
            scratch = memoryview(bytearray(min(self.left, _SKIPPED_BYTES)))
            while self.left:
                self.payload([scratch[: self.left]], listener)
        while len(self._ahead) < HEADER_BYTES:
            self._receive([], listener)
        header = Header.parse(self._ahead[:HEADER_BYTES], self._peer)
        del self._ahead[:HEADER_BYTES]
        self.left = header.length
        return header

    def payload(self, views: Sequence[memoryview], listener: Listener) -> int:
        """Fill the views with the next bytes of the payload, and return their xxh3-64."""
        left = [view for view in views if len(view)]
        digest = xxhash.xxh3_64()
        while left:
            if self._ahead:
                count = min(len(left[0]), len(self._ahead))
                left[0][:count] = self._ahead[:count]
                del self._ahead[:count]
            else:
                count = self._receive(left, listener)
            self.left -= count
            # Digested at once, piece by piece: the bytes are still in the processor's cache, and
            # the sender fills the channel meanwhile.
            come, left = split(left, count)
            for view in come:
                digest.update(view)
        return digest.intdigest()

    def _receive(self, views: Sequence[memoryview], listener: Listener) -> int:
        """Receive something: into the views, and in the same call what follows them.

        Most often that is the next header, or a whole message.

        Returns:
            The number of bytes in the views.
        """
        following = self._following
        listener.check()
        while not (count := self._channel.receive_some([*views, following])):
            listener.wait()
            listener.check()
        over = max(count - sum(map(len, views)), 0)
        self._ahead += following[:over]
        return count - over


class IncomingPackets:
    """What arrives on a connection, and the requests that are sent on it.

    Args:
        channel: Channel that carries the bytes.
        peer: Name of the sender, for messages.
        hello: Packet to be sent before all others.
        exchanges: Downloads under way, by the tokens of their refs.

    Attributes:
        capabilities: What the sender can do beyond what every one can; known once it greeted.
    """

    def __init__(
        self, channel: Channel, peer: str, hello: bytes, exchanges: Mapping[bytes, Exchange]
    ) -> None:
        self.capabilities: frozenset[str] | None = None
        self._channel = channel
        self._peer = peer
        self._hello = hello
        self._exchanges = exchanges
        self._packets = PacketReader(channel, peer)
        self._sending = threading.Lock()
        self._lock = threading.Lock()  # guards the fields below
        self._is_read = False
        # Header that was read, of the packet of another download.
        self._header: wire.Header | None = None
        self._waiting: set[Signal] = set()
        self._is_closed = False

    def send(self, packet: bytes, deadline: Deadline) -> None:
        """Send a request.

        Raises:
            StreamingError: The connection is broken, or takes nothing in time.
        """
        with self._sending:
            self._expect_open()
            if self._hello:
                packet, self._hello = self._hello + packet, b""
            try:
                self._channel.send([memoryview(packet)], deadline)
            except StreamingError:
                self._is_closed = True  # half of a packet may be on its way
                raise

    def wait(self, seconds: float, abort: AbortSignal | None) -> bool:
        """Wait for bytes to be read; return False if there are none after ``seconds``."""
        return self._channel.wait(seconds, abort)

    def header(self, exchange: Exchange) -> wire.Header:
        """Wait for the next packet of a download, and return its header.

        Its payload is to be read then, up to the call of :meth:`done`.

        Raises:
            StreamingError: The connection is broken, or the time to wait is used up.
        """
        while True:
            if not self._has_turn(exchange):
                continue
            try:
                header = self._header or self._packets.header(exchange)
                if self.capabilities is None:
                    self._greet(header, exchange)
                elif header.token == exchange.token:
                    self._header = None
                    return header
                else:
                    self._header = self._of_another(header, exchange)
            except BaseException:
                self.done()
                raise
            self.done()

    def payload(self, views: Sequence[memoryview], exchange: Exchange) -> int:
        """Fill the views with the next bytes of the payload, and return their xxh3-64."""
        return self._packets.payload(views, exchange)

    def done(self) -> None:
        """End the turn of the download that reads: whoever waits may read on."""
        with self._lock:
            self._is_read = False
            self._wake_waiting()

    def close(self) -> None:
        """Close the connection, of which whoever waits for it learns."""
        with self._lock:
            self._is_closed = True
            self._wake_waiting()
        self._channel.close()

    def _expect_open(self) -> None:
        if self._is_closed:
            raise ChannelClosedError(f"the connection to {self._peer} is closed")

    def forget(self) -> None:
        """Have others look again at what comes next: a download has ended."""
        with self._lock:
            self._wake_waiting()

    def _wake_waiting(self) -> None:
        for turn in self._waiting:
            turn.set()

    def _has_turn(self, exchange: Exchange) -> bool:
        """Make a download the reader; or wait until it may be its turn, and return False."""
        with self._lock:
            self._expect_open()
            owner = self._exchanges.get(self._header.token) if self._header else None
            is_free = owner is None or owner is exchange or not owner.is_elsewhere
            if is_free and not self._is_read:
                self._is_read = True
                return True
            turn = Signal()
            self._waiting.add(turn)
        try:
            exchange.wait_for(turn)
        finally:
            with self._lock:
                self._waiting.discard(turn)
            turn.close()
        return False

    def _of_another(self, header: wire.Header, exchange: Exchange) -> wire.Header | None:
        """Leave a packet to the download that it is for, if that is elsewhere, or pass it over.

        Returns:
            The header if it is left.
        """
        owner = self._exchanges.get(header.token)
        if owner is not None and owner.is_elsewhere:
            return header
        # Nobody is to read it: its download has ended, or is one that this thread has left alone.
        if owner is not None:
            owner.has_missed = True
        exchange.count_useless(header.length)
        return None

    def _greet(self, header: wire.Header, exchange: Exchange) -> None:
        """Read the sender's greeting.

        Raises:
            StreamingError: It is none, or of another version of the protocol.
        """
        if header.kind != wire.MESSAGE or header.length > wire.MAX_REQUEST_BYTES:
            raise BrokenStreamError(f"{self._peer} did not greet")
        payload = memoryview(bytearray(header.length))
        if self._packets.payload([payload], exchange) != header.digest:
            raise BrokenStreamError(f"the greeting of {self._peer} does not match its digest")
        hello = wire.decode_reply(payload, self._peer)
        if not isinstance(hello, wire.Hello):
            raise BrokenStreamError(f"{self._peer} did not greet")
        wire.expect_version(hello.version, self._peer)
        self.capabilities = frozenset(hello.capabilities)
