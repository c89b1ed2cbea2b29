"""Download of a ref at the other end of a channel, as a source or into a sink.

One request asks for all that is wanted, and the frames are received to where they belong. What is
damaged or lost is asked for again, by another request. A process of the same run reads the bytes
itself where it can: see :mod:`flstream.streaming.direct`.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Self, cast

from flstream.errors import (
    AbortedError,
    BrokenStreamError,
    ChannelClosedError,
    DeadlineError,
    FlstreamError,
    IntegrityError,
    LayoutError,
    ProtocolError,
    StreamingError,
)
from flstream.model.copy import expect_fit, scatter
from flstream.model.header import parse_header
from flstream.model.layout import ALIGNMENT, Layout
from flstream.model.source import OnRange, Scratch, Sink, Source, views_of
from flstream.streaming import wire
from flstream.streaming.coding import HEAD, Coder
from flstream.streaming.direct import FileReader, MemoryReader
from flstream.streaming.receiver import BROKEN, Receiver
from flstream.streaming.settings import Limits, StreamSettings
from flstream.streaming.wire import Range
from flstream.telemetry.events import Transfer
from flstream.text import quotable
from flstream.transport.channel import AbortSignal

MOST_EAGER_BYTES = 64 << 10
"""Length in bytes of the longest body that comes together with its layout."""

# Times that one chunk is fetched again before the download fails: more failures are not by chance.
_MOST_REPAIRS = 5
# Bytes that are copied, or read directly, at a time where frames have no length.
_STEP_BYTES = 2 << 20
# The header of 10,000 tensors has 1 MiB, and parsing it takes a fifth as long as receiving their
# 1 GB. Larger ones are not cached, so that the cache stays small beside a receiver's buffers.
_MOST_KEPT_BYTES = 2 << 20

Place = Callable[[int, int], Sequence[memoryview]]
"""Function that returns the views for the bytes of a range."""


class RemoteSource:
    """Ref on offer by a receiver's peer, as a source.

    It is read once: from front to back with :meth:`read`, or in the order in which the frames come
    with :meth:`deliver`. The channel holds the sender back, so this side needs memory for one frame
    at most. A frame that is damaged is fetched again, and no other; after a connection that broke,
    what is missing is. The receiver has its turn until the source is closed, left or let go of.

    A ``with`` block is a whole download: leaving it reports the end to the sender::

        with RemoteSource(receiver, token, settings) as remote:
            sink = MemoryBody.allocate(remote.layout)
            remote.deliver(sink)

    What is made durable in the block comes after :meth:`confirm`, since the sender is told after
    it that this receiver has the body.

    Args:
        receiver: Receiving side of the channel.
        token: Token of the ref.
        settings: Sizes and timeouts.
        abort: Signal that cancels the download; by default, that of the receiver.
        eager: Whether all of a short body is to come with the layout.
        digests: Whether the digests of all blocks are to come with the layout, for :meth:`reuse`.
        is_kept: Whether the ref stays on offer to this receiver, which is never done with it.

    Attributes:
        layout: Layout of the sender.
        decoded: Layout of the body that this one is an encoded form of; None for none.
        decoder: Decoder of frames that the sender may encode, to be set before any is requested;
            None to have them as they are.
        order: Text for the order in which the sender lists the tensors and aliases.
        peer: Name of the sender.

    Raises:
        StreamingError: The sender refused, fell silent, or is gone, or another download has its
            turn for too long.
    """

    decoded: Layout | None = None
    decoder: Coder | None = None
    _has_turn = False
    _reader: FileReader | MemoryReader | None = None

    def __init__(
        self,
        receiver: Receiver,
        token: bytes,
        settings: StreamSettings,
        abort: AbortSignal | None = None,
        *,
        eager: bool = True,
        digests: bool = False,
        is_kept: bool = False,
    ) -> None:
        self.peer = receiver.peer
        self.is_kept = is_kept
        self._receiver = receiver
        self._token = token
        self._settings = settings
        self._size = settings.chunk_size
        self._began = time.monotonic()
        self._ended: float | None = None
        self._bytes = self._chunks = self._requests = self._repairs = 0
        self._direct = self._encoded = self._with_base = 0
        self._attempts: dict[int, int] = {}
        self._cursor = 0
        self._rest = memoryview(b"")  # of a frame that was received beyond what was asked for
        self._have: list[Range] = []  # what the source at hand has
        self._at_hand: Source | None = None
        self._scratch = Scratch()
        # Ranges to receive from front to back; how many were requested; ranges to repeat.
        self._due: deque[Range] = deque()
        self._asked_for = 0
        self._damaged: list[Range] = []
        receiver.begin(token, settings, abort)
        self._has_turn = True
        try:
            is_direct = receiver.channel.direct and settings.direct and bool(self._size)
            most = MOST_EAGER_BYTES if self._size and eager and not digests else 0
            self._open(receiver, most, digests, is_direct)
        except BaseException as error:
            self.fail(error)
            raise

    def _open(self, receiver: Receiver, most: int, digests: bool, is_direct: bool) -> None:
        number = receiver.fetching = receiver.next_number()
        request = wire.Open(self._token, number, most, self._size, digests, is_direct)
        opened = self._opened = receiver.ask(request, wire.Opened)
        receiver.was_lost = False  # of a connection that broke: the answer came on another
        self.layout = _layout_of(opened.layout, self.peer, receiver.limits)
        if opened.decoded:
            self.decoded = _layout_of(opened.decoded, self.peer, receiver.limits)
        self.order = opened.order
        if opened.chunk_size % ALIGNMENT:
            raise ProtocolError(f"{self.peer} sends chunks of {opened.chunk_size} bytes, not of 16")
        self._size = min(self._size, opened.chunk_size or self._size)
        nbytes = self.layout.nbytes
        receiver.most_useless += nbytes  # it may be sent twice
        match opened.place if is_direct else None:
            case wire.InFile(offset):
                fd = receiver.channel.take_descriptor()
                self._reader = FileReader(fd, offset, nbytes)
            case wire.InProcess(spans):
                if receiver.channel.peer_pid is None:
                    raise ProtocolError(f"{self.peer} offers its memory without saying who it is")
                self._reader = MemoryReader(receiver.channel.peer_pid, spans, nbytes)
        if self._reader is None and 0 < nbytes <= most:
            self._due.append((0, nbytes))
            self._asked_for = self._requests = 1
        else:
            receiver.fetching = 0

    @property
    def cost(self) -> Transfer:
        """Cost of the download so far, final once it is closed."""
        return Transfer(
            self._bytes + self._direct,
            self._requests,
            self._chunks,
            self._repairs,
            (self._ended or time.monotonic()) - self._began,
            sum(stop - start for start, stop in self._have),
            self._encoded,
            self._with_base,
            self._direct,
        )

    def take_file(self) -> FileReader | None:
        """Return the body's file if the sender handed it over; once."""
        reader, self._reader = self._reader, None
        return reader if isinstance(reader, FileReader) else None

    def reuse(self, source: Source) -> None:
        """Fetch only ranges that a source at hand lacks.

        It is called before anything is received, and of use if digests were asked for.

        Args:
            source: The source. One of another layout is of no use. It may be the memory that is
                received into, and stays as it is until then.

        Raises:
            ProtocolError: The sender's digests are not those of the body.
            FlstreamError: The source cannot be read.
        """
        opened = self._opened
        if opened.block and source.layout == self.layout and self._reader is None:
            if len(opened.digests) != -(-self.layout.nbytes // opened.block) * 8:
                raise ProtocolError(f"{self.peer} sent {len(opened.digests)} bytes of digests")
            blocks = zip(self.layout.ranges(opened.block), array("Q", opened.digests), strict=True)
            self._have = wire.merged(
                place
                for place, digest in blocks
                if wire.digest_of(views_of(source, *place, self._scratch)) == digest
            )
            self._at_hand = source

    def begin(self) -> None:
        """Request all missing ranges, which arrive during other work.

        Raises:
            StreamingError: The sender is gone.
        """
        if not self._due and self._reader is None:
            self._request(self._missing_from(0))

    # Receiving.

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Receive the bytes ``[start, stop)``, which follow the last read ones.

        Raises:
            IntegrityError: A chunk came damaged, or not at all, more often than it is repaired.
            StreamingError: The sender refused, fell silent, is gone or broke the protocol.
        """
        if start != self._cursor:
            raise ValueError(f"a download goes on at byte {self._cursor}, not at {start}")
        if self._reader is not None and self._read_directly(start, [into]):
            self._cursor = stop
        while self._cursor < stop:
            self._cursor += self._fill(into[self._cursor - start :])

    def _fill(self, room: memoryview) -> int:
        """Fill the beginning of a view with the next bytes; return their count."""
        cursor = self._cursor
        for first, last in self._have:
            if first <= cursor < last and self._at_hand is not None and not self._rest:
                count = min(last - cursor, len(room))
                self._at_hand.read(cursor, cursor + count, room[:count])
                return count
        if not self._rest:
            if not self._due:
                self._request(self._missing_from(cursor))
            beside = memoryview(b"")

            def place(start: int, stop: int) -> list[memoryview]:
                nonlocal beside
                if stop - start <= len(room):
                    return [room[: stop - start]]
                beside = memoryview(bytearray(stop - start))
                return [beside]

            frame = self._take(place, in_order=True)
            assert frame is not None
            if not beside:
                return frame[1] - cursor
            self._rest = beside
        count = min(len(room), len(self._rest))
        room[:count], self._rest = self._rest[:count], self._rest[count:]
        return count

    def deliver(
        self,
        sink: Sink,
        on_range: OnRange | None = None,
        wanted: Sequence[Range] | None = None,
    ) -> None:
        """Receive ranges of the body into a random access sink, frame by frame.

        Args:
            sink: The sink.
            on_range: Called with each range that is in the sink; None for nothing.
            wanted: Ranges to be received; None for all that the source at hand lacks, which is
                copied from there.

        Raises:
            StreamingError: As for :meth:`read`.
            FlstreamError: The sink cannot be written.
        """
        if wanted is None:
            expect_fit(self.layout, sink, self.peer)
            wanted = self._missing_from(0)
        for at_hand in wire.cut(self._have, _STEP_BYTES):
            if self._at_hand is not None and cast(object, self._at_hand) is not sink:
                scatter(views_of(self._at_hand, *at_hand, self._scratch), sink.views(*at_hand))
            _commit(sink, on_range, *at_hand)
        pieces = wire.cut(wanted, self._size or _STEP_BYTES)
        while self._reader is not None:
            if (piece := next(pieces, None)) is None:
                return
            if self._read_directly(piece[0], sink.views(*piece)):
                _commit(sink, on_range, *piece)
            else:
                wanted = wire.merged([piece, *pieces])
        if not self._due:
            self._request(wanted)
        while (frame := self._take(sink.views)) is not None:
            _commit(sink, on_range, *frame)

    def _read_directly(self, start: int, into: Sequence[memoryview]) -> bool:
        """Read bytes without the sender; return False once that is impossible."""
        assert self._reader is not None
        self._receiver.expect_on()
        try:
            self._reader.read(start, into)
        except OSError:  # the kernel does not allow it, or the sender is gone: frames will tell
            self._reader = None
            return False
        stop = start + sum(map(len, into))
        self._requests += not self._direct
        self._chunks += -(-stop // self._size) - -(-start // self._size)  # as many as of frames
        self._direct += stop - start
        return True

    def _missing_from(self, start: int) -> list[Range]:
        """Return the ranges that the source at hand lacks from an offset on."""
        missing = []
        for first, last in [*self._have, (self.layout.nbytes, self.layout.nbytes)]:
            if first > start:
                missing.append((start, first))
            start = max(start, last)
        return missing

    def _request(self, ranges: Sequence[Range]) -> None:
        """Request ranges, as many as a request may have; on failure, count them as lost."""
        decoder = self.decoder if self._size else None
        self._damaged, self._due = [], deque(ranges)
        wanted = ranges[: wire.MAX_RANGES]
        self._asked_for = len(wanted)
        if not wanted:
            return
        receiver = self._receiver
        number = receiver.fetching = receiver.next_number()
        receiver.was_lost = False
        self._requests += 1
        how = self._size, decoder is not None, "" if decoder is None else decoder.base
        try:
            receiver.request(wire.Fetch(self._token, number, list(wanted), *how))
        except BROKEN as error:
            receiver.recover(error)

    def _take(self, place: Place, *, in_order: bool = False) -> Range | None:
        """Receive the next sound frame to its place; return its range, None at the end."""
        receiver = self._receiver
        while self._due or self._damaged:
            try:
                if receiver.was_lost or not self._asked_for:
                    # Nothing more will come of earlier requests.
                    self._repairs += receiver.was_lost or bool(self._damaged)
                    self._request(wire.merged([*self._damaged, *self._due]))
                    continue
                start, last = self._due[0]
                stop = min(start + self._size, last) if self._size else last
                receiver.awaited = self.layout, start
                receiver.expect_on()
                header = receiver.packets.header(receiver.wait)
                if header.kind == wire.MESSAGE:
                    receiver.message(header)
                    continue
                if header.number != receiver.fetching or not receiver.packets.has_greeted:
                    receiver.count_useless(header.length)  # of a request that was given up
                    continue
                if header.start != start:
                    raise BrokenStreamError(
                        f"{self.peer} sent bytes from {header.start} on, where those from {start} "
                        "on were to come next"
                    )
                views = place(start, stop)
                if header.kind == wire.ENCODED:
                    is_sound = self._decode(header, views, stop)
                elif header.length == stop - start:
                    is_sound = receiver.packets.payload(views, receiver.wait)
                else:
                    raise BrokenStreamError(
                        f"{self.peer} sent {header.length} bytes for a frame of {stop - start}"
                    )
            except BROKEN as error:
                receiver.recover(error)
                continue
            if stop < last:
                self._due[0] = stop, last
            else:
                self._due.popleft()
                self._asked_for -= 1
            if not is_sound:
                self._count_damage(start, stop)
                receiver.was_lost |= in_order
                continue
            receiver.of_use()
            self._bytes += header.length
            self._chunks += 1
            if not (self._due or self._damaged):
                receiver.fetching, receiver.awaited = 0, None
            return start, stop
        return None

    def _decode(self, header: wire.Header, views: Sequence[memoryview], stop: int) -> bool:
        """Receive an encoded frame into its place; return whether its digest matches."""
        if self.decoder is None or not HEAD.size <= header.length < stop - header.start:
            raise BrokenStreamError(f"{self.peer} sent an encoded frame unasked")
        payload = memoryview(bytearray(header.length))
        if not self._receiver.packets.payload([payload], self._receiver.wait):
            return False
        digest, has_base = HEAD.unpack_from(payload)
        out = views[0] if len(views) == 1 else memoryview(bytearray(stop - header.start))
        try:
            data = payload[HEAD.size :]
            self.decoder.decode(data, out, header.start, stop, has_base=bool(has_base))
            is_sound = wire.digest_of([out]) == digest
        except FlstreamError:  # of a codec, or of a file with a model: the bytes come without
            is_sound = False
        if not is_sound:  # it came as it was sent: the sides have other models or codecs
            self.decoder = None
            self._receiver.was_lost = True  # what follows is not asked for encoded
            return False
        if len(views) > 1:
            scatter([out], views)
        self._encoded += stop - header.start
        self._with_base += stop - header.start if has_base else 0
        return True

    def _count_damage(self, start: int, stop: int) -> None:
        """Count a damaged frame, and fail after too many."""
        self._damaged.append((start, stop))
        self._attempts[start] = self._attempts.get(start, 0) + 1
        if self._attempts[start] > _MOST_REPAIRS:
            raise IntegrityError(
                f"bytes {start} to {stop} from {self.peer} (tensor "
                f"{self.layout.name_at(start)!r}) came {self._attempts[start]} times, and never "
                "matched their digest; the sender's memory, or what it offers, is being changed"
            )

    # The end.

    def confirm(self) -> None:
        """Ask the sender whether the ref is still on offer and unchanged.

        Raises:
            RefusedError: It is not, or was.
            StreamingError: The sender is gone.
        """
        self._receiver.ask(wire.Ping(self._token, self._receiver.next_number()), wire.Pong)

    def close(self, failure: str = "") -> None:
        """Tell the sender that this receiver is done; stop the count of seconds.

        Args:
            failure: Reason for which the download failed; empty if it succeeded.

        Raises:
            RefusedError: The sender does not agree that it succeeded.
            StreamingError: The sender cannot be told. The bytes received are sound all the same,
                unless they were read directly.
        """
        self._ended = time.monotonic()
        if not self._has_turn:
            self._receiver.begin(self._token, self._settings)
            self._has_turn = True
        try:
            self._receiver.settle(failure)
        finally:
            self.leave()

    def leave(self) -> None:
        """Take no more frames, so that the ref can be fetched again."""
        self._reader = None
        if self._has_turn:
            self._has_turn = False
            self._receiver.end()

    def __del__(self) -> None:
        self.leave()  # of a source that was let go of

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Report the end to the sender: a failure, also of the caller's code, or success."""
        if error is not None:
            self.fail(error)
        elif self.is_kept:
            self.leave()
        else:
            # The sender refuses bytes that are not its offer's, or late ones. Bytes that came in
            # frames are sound even if the sender cannot be informed.
            gone = ChannelClosedError, DeadlineError, AbortedError, ProtocolError
            with suppress(*(() if self._direct else gone)):
                self.close()

    def fail(self, error: BaseException) -> None:
        """Report the failure to the sender, unless the ref stays on offer."""
        is_ours = isinstance(error, FlstreamError)  # and not of a function of the user's
        reason = str(error) if is_ours else f"{type(error).__name__}: {error}"
        try:
            if self._has_turn and not self.is_kept:
                with suppress(StreamingError):
                    self._receiver.give_up(quotable(reason))
        finally:
            self.leave()


def _commit(sink: Sink, on_range: OnRange | None, start: int, stop: int) -> None:
    sink.commit(start, stop)
    if on_range is not None:
        on_range(start, stop)


def _layout_of(header: bytes, peer: str, limits: Limits) -> Layout:
    """Return the layout in a header's JSON; the same object for the same bytes."""
    if len(header) > limits.layout_bytes:
        raise ProtocolError(
            f"{peer} offers a layout of {len(header)} bytes, and {limits.layout_bytes} are taken "
            "here at most (Limits.layout_bytes)"
        )
    parse = _parsed if len(header) <= _MOST_KEPT_BYTES else _parsed.__wrapped__
    try:
        layout: Layout = parse(header, limits.layout_tensors)
    except LayoutError as error:
        raise ProtocolError(f"{peer} offers tensors, but {error}") from error
    if layout.nbytes > limits.body_bytes:
        raise ProtocolError(
            f"{peer} offers {layout.nbytes} bytes, and {limits.body_bytes} are taken here at most "
            "(Limits.body_bytes)"
        )
    return layout


@lru_cache(maxsize=2)
def _parsed(header: bytes, most_tensors: int) -> Layout:
    return parse_header(header, "their layout", most_tensors)[0]
