"""Reading packets from a channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import xxhash

from flstream.streaming.wire import HEADER_BYTES, Header
from flstream.transport.channel import Channel
from flstream.transport.views import split

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
