"""Frames on the sender's side: chunks of a source, digested, and sent as the channel takes them.

Bytes in tensors or in a file are not copied on their way to the kernel, if they are long enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from flstream.errors import CodecError, FlstreamError, SourceChangedError
from flstream.model.source import Extent, Scratch, Source, change_of, views_of
from flstream.streaming.coding import HEAD_BYTES, FrameEncoder, pack_head
from flstream.streaming.content import Content, Copied, Gathered, InFile, Lent
from flstream.streaming.digesting import RangeDigest
from flstream.streaming.refs import Ref
from flstream.streaming.wire import ENCODED, FRAME, Header, digest_of
from flstream.transport.channel import Channel
from flstream.transport.lending import Lending, PrivateMemory

LEAST_LENT = 128 << 10
"""Length in bytes of the shortest frame that is lent: shorter ones are faster to copy."""

# Views shorter than this on average are copied, too: each is lent by a call of its own, and 2 MiB
# in views of 100 KiB took twice as long that way.
_LEAST_VIEW = 256 << 10
# A chunk made of more tensors than this is gathered into one buffer first: beyond it, handing
# views to the kernel costs more than copying the bytes.
_MAX_GATHER = 128
# Bytes of a long chunk that are gathered at a time, where they are not in one place.
_GATHERED_BYTES = 1 << 20
# Bytes of a whole model that are gathered in a turn: between two of them, others are answered.
_TURN_BYTES = 16 << 20
# Bytes of the longest frame that is encoded.
_MOST_ENCODED_BYTES = 8 << 20


@dataclass(eq=False)
class Demand:
    """A range of a ref that a receiver is to be sent, chunk by chunk.

    Attributes:
        token: Token of the ref.
        request: Number of its request.
        next: Offset in bytes of its next chunk.
        stop: Offset in bytes of its end.
        chunk_size: Length in bytes of the longest frame; 0 is the whole model serialised into one.
        encoder: What makes its frames smaller; None for nothing.
    """

    token: bytes
    request: int
    next: int
    stop: int
    chunk_size: int
    encoder: FrameEncoder | None = None


@dataclass(eq=False)
class Frame:
    """A chunk that is being sent, or ready to be.

    Attributes:
        demand: Demand that it is a part of.
        start: Offset in bytes of the chunk.
        stop: Offset in bytes of the chunk's end.
        length: Length of its payload in bytes.
        parts: Content still to be sent: the header, and the payload.
        has_begun: Whether some of it has been sent.
    """

    demand: Demand
    start: int
    stop: int
    length: int
    parts: list[Content]
    has_begun: bool = False
    _lent: Lending | None = None

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

    def lent(self) -> Lending | None:
        """Return what the last call has lent to the channel, if anything."""
        return self._lent


class Preparation:
    """The next frame of a demand that is being made: its bytes are digested, some in each turn.

    Args:
        demand: Demand to be answered.
        ref: The ref that it is of.
        source: Source of the bytes.
        lends: Whether memory may be lent to the channel.

    Attributes:
        demand: As given.
        start: Offset in bytes of the frame's chunk.
    """

    def __init__(self, demand: Demand, ref: Ref, source: Source, *, lends: bool = True) -> None:
        self.demand = demand
        self._lends = lends and getattr(source, "lendable", False)
        self.start = demand.next
        self._stop = demand.stop
        if demand.chunk_size:
            self._stop = min(self.start + demand.chunk_size, demand.stop)
        self._length = self._stop - self.start
        self._ref = ref
        self._source = source
        self._digest: RangeDigest | None = None
        # A frame that is longer is sent as it is: to encode it keeps the others waiting.
        self._encoder = demand.encoder if self._length <= _MOST_ENCODED_BYTES else None
        # What another thread digests, and what had to be gathered of it.
        self._begun: Future[int] | None = None
        self._views: list[memoryview] = []
        self._staged = Scratch()
        # A whole model that is being gathered, and how much of its body is.
        self._gathered: memoryview | None = None
        self._next = 0

    def begin(self, threads: Executor, most: int) -> None:
        """Digest a chunk of up to ``2 * most`` bytes in memory beside this thread."""
        if (
            self._encoder is None
            and getattr(self._source, "lendable", False)
            and LEAST_LENT <= self._length <= 2 * most
        ):
            self._views = list(views_of(self._source, self.start, self._stop, self._staged))
            self._begun = threads.submit(digest_of, self._views)

    def go_on(self, most: int, scratch: Scratch) -> Frame | None:
        """Digest about so many bytes, and return the frame once it is made.

        Args:
            most: Number of bytes; up to twice as many are digested at once if that is all.
            scratch: Buffer for reading; its content is undefined afterwards.

        Raises:
            FlstreamError: The source cannot be read there, or has changed.
        """
        if self.demand.chunk_size == 0:
            return self._whole(scratch)
        if self._encoder is not None and (frame := self._encoded(self._encoder)) is not None:
            return frame
        if self._length <= 2 * most:
            most = self._length
        extent = getattr(self._source, "extent", None)
        if self._length >= LEAST_LENT and extent is not None:
            return self._in_file(extent(self.start, self._stop), most, scratch)
        if self._length <= most:
            return self._at_once()
        digest = self._digest_some(most, scratch)
        return None if digest is None else self._frame(digest, list(self._pieces()))

    def _whole(self, scratch: Scratch) -> Frame | None:
        """Gather a whole model with its header in one buffer, some of it in each turn."""
        head = self._source.layout.plain_header
        if self._gathered is None:
            self._gathered = memoryview(bytearray(len(head) + self._stop))
            self._gathered[: len(head)] = head
        start, stop = self._next, min(self._next + _TURN_BYTES, self._stop)
        for view in views_of(self._source, start, stop, scratch) if stop > start else ():
            self._gathered[len(head) + self._next :][: len(view)] = view
            self._next += len(view)
        if self._next < self._stop:
            return None
        self._length = len(self._gathered)
        return self._frame(digest_of([self._gathered]), [Copied([self._gathered])])

    def _encoded(self, encoder: FrameEncoder) -> Frame | None:
        """Make a frame of a chunk that is encoded; None where that makes it no smaller."""
        views = views_of(self._source, self.start, self._stop, self._staged)
        data = views[0] if len(views) == 1 else memoryview(b"".join(views))
        self._encoder = None  # it is encoded once, whatever comes of it
        try:
            made = encoder(data, self.start, self._stop)
        except FlstreamError:
            raise
        except (Exception, SystemExit) as error:  # of the user's code, on the thread of all others
            raise CodecError(
                f"a frame cannot be encoded: {type(error).__name__}: {error}"
            ) from error
        if made is None or len(made.data) + HEAD_BYTES >= self._length:
            return None
        head = pack_head(digest_of([data]), made)
        payload = [memoryview(head), memoryview(made.data)]
        self._length = len(head) + len(made.data)
        return self._frame(digest_of(payload), [Copied(payload)], ENCODED)

    def _in_file(self, extent: Extent, most: int, scratch: Scratch) -> Frame | None:
        """Make a frame of a chunk in a file, digested when it was written or first sent."""
        digest = extent.digests.get(self.start, self._stop)
        if digest is None:
            digest = self._digest_some(most, scratch)
            if digest is None:
                return None
            extent.digests.note(self.start, self._stop, digest)
        return self._frame(digest, [InFile(self._source, extent, self._length)])

    def _at_once(self) -> Frame:
        """Make a frame of a chunk in memory, or of one that is read into memory."""
        views = self._views
        if self._begun is None:
            views = list(views_of(self._source, self.start, self._stop, self._staged))
        digest = digest_of(views) if self._begun is None else self._begun.result()
        is_lent = self._length >= max(LEAST_LENT, _LEAST_VIEW * len(views))
        if is_lent and self._lends and not self._staged.buffer:
            return self._frame(digest, list(_lent_pages(views, self._ref.private_memory)))
        if len(views) > _MAX_GATHER:
            views = [memoryview(b"".join(views))]
        return self._frame(digest, [Copied(views)])

    def _pieces(self) -> Iterator[Content]:
        """Yield a long chunk in pieces, so that those not in one place are gathered one by one."""
        for start in range(self.start, self._stop, _GATHERED_BYTES):
            stop = min(start + _GATHERED_BYTES, self._stop)
            staged = Scratch()
            views = views_of(self._source, start, stop, staged)
            if staged.buffer:
                yield Gathered(self._source, start, stop)
            elif self._lends:
                yield from _lent_pages(views, self._ref.private_memory)
            else:
                yield Copied(views)

    def _digest_some(self, most: int, scratch: Scratch) -> int | None:
        """Digest about so many bytes more; return the digest once it is of all of them."""
        if self._digest is None:
            self._digest = RangeDigest(self._source, self.start, self._stop)
        self._digest.go_on(most, scratch)
        return self._digest.value if self._digest.is_done else None

    def _frame(self, digest: int, payload: list[Content], kind: int = FRAME) -> Frame:
        demand = self.demand
        header = Header(kind, demand.request, demand.token, self.start, self._length, digest)
        head = memoryview(header.pack())
        first = payload[0]
        if isinstance(first, Copied):  # in one call
            payload[0] = first.after(head)
        else:
            payload.insert(0, Copied([head], more=True))
        return Frame(demand, self.start, self._stop, self._length, payload)


def expect_unchanged(source: Source) -> None:
    """Refuse a source that is not what was offered.

    Raises:
        SourceChangedError: It is known to have changed.
    """
    change = change_of(source)
    if change is not None:
        raise SourceChangedError(change)


def _lent_pages(views: Sequence[memoryview], memory: PrivateMemory) -> Iterator[Content]:
    """Yield views as content: lent where they are in pages of their tensor alone, else copied.

    Args:
        views: The views.
        memory: Private memory.
    """
    copied: list[memoryview] = []
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
