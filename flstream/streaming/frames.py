"""Frames on the sender's side: chunks of a source, digested, and sent as the channel takes them.

Bytes in tensors or in a file are not copied on their way to the kernel, if they are long enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import xxhash

from flstream.errors import SourceChangedError
from flstream.model.body import Extent, Scratch, Source
from flstream.model.digests import ChunkDigests
from flstream.streaming.refs import Ref
from flstream.streaming.wire import FRAME, Header, digest_of
from flstream.transport.channel import Channel
from flstream.transport.lending import PrivateMemory
from flstream.transport.splice import Pages
from flstream.transport.views import advance

LEAST_LENT = 128 << 10
"""Length in bytes of the shortest frame that is lent: shorter ones are faster to copy."""

# Views shorter than this on average are copied, too: each is lent by a call of its own, and 2 MiB
# in views of 100 KiB took twice as long that way.
_LEAST_VIEW = 256 << 10
# A chunk made of more tensors than this is gathered into one buffer first: beyond it, handing
# views to the kernel costs more than copying the bytes.
_MAX_GATHER = 128
# Bytes of a file that are digested at a time, so that they stay in the processor's cache.
_PIECE_BYTES = 256 << 10


@dataclass(eq=False)
class Demand:
    """A range of a ref that a receiver is to be sent, chunk by chunk.

    Attributes:
        token: Token of the ref.
        request: Number of its request; 0 for a push, which has none.
        next: Offset in bytes of its next chunk.
        stop: Offset in bytes of its end.
        limit: Offset up to which it may be sent for now: ``stop``, or what the receiver of a push
        granted.
        chunk_size: Length in bytes of the longest frame; 0 is the whole model serialised into one.
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
    """Part of a packet that is still to be sent."""

    @property
    def left(self) -> int:
        """Number of bytes to be sent."""
        ...

    def send_some(self, channel: Channel) -> int:
        """Send what the channel takes, and return the number of bytes."""
        ...

    def lent(self) -> Sequence[tuple[int, int]]:
        """Return the addresses of memory that was lent to the channel since the last call."""
        ...


class Copied:
    """Bytes that the kernel copies."""

    def __init__(self, views: Sequence[memoryview]) -> None:
        self._views = list(views)

    @property
    def left(self) -> int:
        """Number of bytes to be sent."""
        return sum(map(len, self._views))

    def send_some(self, channel: Channel) -> int:
        """Send what the channel takes, and return the number of bytes."""
        count = channel.send_some(self._views)
        self._views = advance(self._views, count)
        return count

    def lent(self) -> Sequence[tuple[int, int]]:
        """Return nothing."""
        return ()


class Lent:
    """Bytes that the receiver reads from the sender's memory, so that they are not copied twice.

    Args:
        view: The bytes, in pages of private memory that have nothing else on them.
    """

    def __init__(self, view: memoryview) -> None:
        self._pages = Pages([view])

    @property
    def left(self) -> int:
        """Number of bytes to be sent."""
        return self._pages.left

    def send_some(self, channel: Channel) -> int:
        """Send what the channel takes, and return the number of bytes."""
        return channel.lend_some(self._pages)

    def lent(self) -> Sequence[tuple[int, int]]:
        """Return the addresses of memory that was lent to the channel since the last call."""
        return self._pages.taken()


class InFile:
    """Bytes of a file, which the receiver reads from the page cache."""

    def __init__(self, source: Source, extent: Extent, nbytes: int) -> None:
        self._source = source  # the descriptor is open as long as it exists
        self._fd, self._offset = extent.fd, extent.offset
        self._left = nbytes

    @property
    def left(self) -> int:
        """Number of bytes to be sent."""
        return self._left

    def send_some(self, channel: Channel) -> int:
        """Send what the channel takes, and return the number of bytes."""
        count = channel.send_file_some(self._fd, self._offset, self._left)
        self._offset += count
        self._left -= count
        return count

    def lent(self) -> Sequence[tuple[int, int]]:
        """Return nothing: a file that is offered stays as it is."""
        return ()


@dataclass(eq=False)
class Frame:
    """A chunk that is being sent, or ready to be.

    Attributes:
        demand: Demand that it is a part of.
        start: Offset in bytes of the chunk.
        stop: Offset in bytes of the chunk's end.
        parts: Content still to be sent: the header, and the payload.
        has_begun: Whether some of it has been sent.
    """

    demand: Demand
    start: int
    stop: int
    parts: list[Content]
    has_begun: bool = False
    _lent: Sequence[tuple[int, int]] = ()

    @classmethod
    def read(cls, demand: Demand, ref: Ref, source: Source, scratch: Scratch) -> Frame:
        """Make the frame of a demand's next chunk, with its digest.

        Args:
            demand: Demand to be answered.
            ref: The ref that it is of.
            source: Source of the bytes.
            scratch: Buffer for reading files; its content is undefined afterwards.

        Raises:
            FlstreamError: The source cannot be read there, or has changed.
        """
        start = demand.next
        stop = min(start + demand.chunk_size, demand.stop) if demand.chunk_size else demand.stop
        length, lent = stop - start, demand.chunk_size and stop - start >= LEAST_LENT
        if lent and source.extent is not None:
            extent = source.extent(start, stop)
            digest = _digest_in_file(source, extent.digests, start, stop, scratch)
            expect_unchanged(source, start, stop)
            head = _header(demand, start, length, digest)
            return cls(demand, start, stop, [Copied([head]), InFile(source, extent, length)])
        staged = Scratch()
        views = list(source.views(start, stop, staged))
        if demand.chunk_size == 0:
            views = [memoryview(b"".join([source.layout.plain_header, *views]))]
            length = len(views[0])
        digest = digest_of(views)
        # Afterwards: what is changed from here on is found out by the digest.
        expect_unchanged(source, start, stop)
        head = _header(demand, start, length, digest)
        stays = lent and source.lendable and not staged.buffer
        if stays and length >= _LEAST_VIEW * len(views):
            parts = list(_lent_pages(head, views, ref.private_memory))
        elif len(views) > _MAX_GATHER:
            parts = [Copied([head]), Copied([memoryview(b"".join(views))])]
        else:
            parts = [Copied([head, *views])]
        return cls(demand, start, stop, parts)

    @property
    def left(self) -> int:
        """Number of bytes that are still to be sent."""
        return sum(part.left for part in self.parts)

    def send_some(self, channel: Channel) -> int:
        """Send what the channel takes, and return the number of bytes."""
        part = self.parts[0]
        count = part.send_some(channel)
        self._lent = part.lent()
        if not part.left:
            del self.parts[0]
        self.has_begun = self.has_begun or count > 0
        return count

    def lent(self) -> Sequence[tuple[int, int]]:
        """Return the addresses of memory that the last call has lent to the channel."""
        return self._lent


def expect_unchanged(source: Source, start: int, stop: int) -> None:
    """Refuse to send a range of a source that is not what was offered.

    Raises:
        SourceChangedError: It is known to have changed.
    """
    change = source.changed(start, stop) if source.changed is not None else None
    if change is not None:
        raise SourceChangedError(change)


def _header(demand: Demand, start: int, length: int, digest: int) -> memoryview:
    header = Header(FRAME, demand.request, demand.token, start, length, digest)
    return memoryview(header.pack())


def _lent_pages(
    head: memoryview, views: Sequence[memoryview], memory: PrivateMemory
) -> Iterator[Content]:
    """Yield views as content: lent where they are in pages of their tensor alone, else copied.

    Args:
        head: Bytes that go before them.
        views: The views.
        memory: Private memory.
    """
    copied = [head]
    for view in views:
        start, stop = memory.own_pages(view)
        if start == stop:
            copied.append(view)
            continue
        if start:
            copied.append(view[:start])
        if copied:
            yield Copied(copied)
        yield Lent(view[start:stop])
        copied = [view[stop:]] if stop < len(view) else []
    if copied:
        yield Copied(copied)


def _digest_in_file(
    source: Source, digests: ChunkDigests, start: int, stop: int, scratch: Scratch
) -> int:
    """Return the digest of a chunk in a file, taken when it was written or first sent."""
    known = digests.get(start, stop)
    if known is not None:
        return known
    digest = xxhash.xxh3_64()
    for first in range(start, stop, _PIECE_BYTES):
        for piece in source.views(first, min(first + _PIECE_BYTES, stop), scratch):
            digest.update(piece)
    digests.note(start, stop, digest.intdigest())
    return digest.intdigest()
