"""Frames as a sender makes them: chunks of a source, digested and sent when their turn comes.

Bytes that stay where they are, in tensors or in a file, are not copied on their way to the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import xxhash

from flstream.model.body import Scratch, Source
from flstream.model.checkpoint import FileSource
from flstream.model.memory import MemoryBody
from flstream.streaming.wire import FRAME, Header, digest_of
from flstream.transport.channel import Channel
from flstream.transport.splice import Pages
from flstream.transport.views import advance

LEAST_LENT = 128 << 10
"""The shortest frame that is lent: for others, asking for the pages costs more than a copy."""

# Views shorter than this on average are copied, too: each page of each view has its price.
_LEAST_VIEW = 16 << 10
# A chunk made of more tensors than this is gathered into one buffer first: beyond it, handing
# views to the kernel costs more than copying the bytes.
_MAX_GATHER = 128
# A file is digested in pieces that stay in the processor's cache while they are read.
_PIECE_BYTES = 256 << 10


@dataclass(eq=False)
class Demand:
    """A range of a ref that a receiver is to be sent, chunk by chunk.

    Attributes:
        token: the ref.
        request: number of the request that asked for it; 0 where nobody asked, in push mode.
        next: where its next chunk begins.
        stop: where it ends.
        limit: how far it may be sent for now: ``stop``, or in push mode what the receiver granted.
        chunk_size: longest frame in bytes; 0 is the whole model serialised into one.
    """

    token: bytes
    request: int
    next: int
    stop: int
    limit: int
    chunk_size: int

    @property
    def is_open(self) -> bool:
        """Whether some of it may be sent now."""
        return self.next < self.limit


class Content(Protocol):
    """What is still to be sent of a packet."""

    @property
    def left(self) -> int:
        """Bytes to be sent."""
        ...

    def send_some(self, channel: Channel) -> int:
        """Send what the channel takes, and return how many bytes that was."""
        ...


class Copied:
    """Bytes that the kernel copies."""

    def __init__(self, views: Sequence[memoryview]) -> None:
        self._views = list(views)

    @property
    def left(self) -> int:
        """Bytes to be sent."""
        return sum(map(len, self._views))

    def send_some(self, channel: Channel) -> int:
        """Send what the channel takes."""
        count = channel.send_some(self._views)
        self._views = advance(self._views, count)
        return count


class Lent:
    """Bytes that stay as they are until the receiver has them, which reads them itself."""

    def __init__(self, views: Sequence[memoryview]) -> None:
        self._pages = Pages(views)

    @property
    def left(self) -> int:
        """Bytes to be sent."""
        return self._pages.left

    def send_some(self, channel: Channel) -> int:
        """Send what the channel takes."""
        return channel.lend_some(self._pages)


class InFile:
    """Bytes of a file, which the receiver gets from the page cache."""

    def __init__(self, source: FileSource, start: int, stop: int) -> None:
        self._source = source  # its descriptor lives as long as it does
        self._start, self._stop = start, stop

    @property
    def left(self) -> int:
        """Bytes to be sent."""
        return self._stop - self._start

    def send_some(self, channel: Channel) -> int:
        """Send what the channel takes."""
        fd, offset = self._source.extent(self._start)
        count = channel.send_file_some(fd, offset, self.left)
        self._start += count
        return count


@dataclass(eq=False)
class Frame:
    """A chunk that is on its way, or is ready to be.

    Attributes:
        demand: what it answers.
        start: where the chunk begins.
        stop: where it ends.
        parts: what is still to be sent: the header, and the payload.
        has_begun: whether some of it has been sent.
    """

    demand: Demand
    start: int
    stop: int
    parts: list[Content]
    has_begun: bool = False

    @classmethod
    def read(cls, demand: Demand, source: Source, scratch: Scratch) -> Frame:
        """Digest the next chunk of a demand.

        Args:
            demand: what it answers.
            source: of the bytes.
            scratch: for files; what it holds afterwards is of no use.

        Raises:
            FlstreamError: the source cannot be read there.
        """
        start = demand.next
        stop = min(start + demand.chunk_size, demand.stop) if demand.chunk_size else demand.stop
        length, lent = stop - start, demand.chunk_size and stop - start >= LEAST_LENT
        if lent and isinstance(source, FileSource):
            digest = _digest_in_file(source, start, stop, scratch)
            content: Content = InFile(source, start, stop)
        else:
            staged = Scratch()
            views = list(source.views(start, stop, staged))
            if demand.chunk_size == 0:
                views = [memoryview(b"".join([source.layout.plain_header, *views]))]
                length = len(views[0])
            digest = digest_of(views)
            stays = lent and isinstance(source, MemoryBody) and not staged.buffer
            if stays and length >= _LEAST_VIEW * len(views):
                content = Lent(views)
            elif len(views) > _MAX_GATHER:
                content = Copied([memoryview(b"".join(views))])
            else:
                content = Copied(views)
        header = Header(FRAME, demand.request, demand.token, start, length, digest)
        return cls(demand, start, stop, [Copied([memoryview(header.pack())]), content])

    @property
    def left(self) -> int:
        """Bytes that are still to be sent."""
        return sum(part.left for part in self.parts)

    def send_some(self, channel: Channel) -> int:
        """Send what the channel takes, and return how many bytes that was."""
        count = self.parts[0].send_some(channel)
        if not self.parts[0].left:
            del self.parts[0]
        self.has_begun = self.has_begun or count > 0
        return count


def _digest_in_file(source: FileSource, start: int, stop: int, scratch: Scratch) -> int:
    """The digest of a chunk: known since it was written, or taken once for all who are sent it."""
    known = source.digests.get(start, stop)
    if known is not None:
        source.require(stop)
        return known
    digest = xxhash.xxh3_64()
    for first in range(start, stop, _PIECE_BYTES):
        (piece,) = source.views(first, min(first + _PIECE_BYTES, stop), scratch)
        digest.update(piece)
    source.digests.note(start, stop, digest.intdigest())
    return digest.intdigest()
