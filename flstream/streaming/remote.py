"""A ref at the other end of a channel as a source, which has damaged chunks fetched again."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import cast

from flstream.errors import FlstreamError, ProtocolError, StreamingError
from flstream.model.copy import copy, scatter
from flstream.model.memory import BufferSource
from flstream.model.source import OnRange, Sink, Source
from flstream.streaming import wire
from flstream.streaming.chunks import Chunks, Place
from flstream.streaming.coding import DecoderFor
from flstream.streaming.exchange import Exchange
from flstream.streaming.held import BlockComparison, HeldBlocks, KnownBody
from flstream.streaming.opening import open_ref
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.telemetry.events import Transfer
from flstream.text import quotable
from flstream.transport.channel import AbortSignal
from flstream.transport.views import part_of, split

# Most bytes of chunks that overtake a damaged one and are kept, where the body is read from front
# to back: as much as a pipe holds when that one is requested again.
_MOST_EARLY_BYTES = 8 << 20
# Seconds that a receiver waits for the sender to confirm that the download is closed.
_CLOSE_SECONDS = 5.0


class RemoteSource:
    """A ref offered by a receiver's peer.

    It is read once: from front to back with :meth:`receive`, or in the order in which the chunks
    come with :meth:`receive_all`. The next requests are under way while a range is being read; the
    channel holds the sender back, so this side needs no memory for them. A chunk that is damaged is
    fetched again, and no other; after a connection that broke, what is missing is.

    Args:
        receiver: Receiving side of the channel.
        token: Token of the ref.
        settings: Sizes, window and timeouts.
        abort: Signal that cancels the download; by default, that of the receiver.
        part: Tensors that are wanted of the ref, or of all that is on offer; None for the ref.
        known: Short body that is not to be sent if it is what the ref has; None for none.
        decoder_for: Makes what gives frames back that the sender has encoded; None to have them as
            they are.

    Attributes:
        layout: Layout of the sender.
        names: Names of the tensors and aliases in the order in which the sender lists them.

    Raises:
        StreamingError: The sender refused, fell silent, or is gone.
    """

    random_access = False
    lendable = False
    extent = None
    changed = None

    def __init__(
        self,
        receiver: Receiver,
        token: bytes,
        settings: StreamSettings,
        abort: AbortSignal | None = None,
        part: wire.Part | None = None,
        known: KnownBody | None = None,
        decoder_for: DecoderFor | None = None,
    ) -> None:
        # A part has a token of its own, which its receiver draws.
        token = token if part is None else secrets.token_bytes(wire.TOKEN_BYTES)
        self._exchange = Exchange(receiver, token, settings, abort)
        self._settings = settings
        self._began = time.monotonic()
        self._ended: float | None = None
        self._cursor = 0
        # Seconds that a reader from front to back has waited for the sender.
        self._receiving = 0.0
        # Chunks that overtook the one at the cursor, and one more that may come damaged.
        self._early: dict[int, memoryview] = {}
        self._coming = memoryview(b"")
        self._speeds = receiver.speeds
        self._held: HeldBlocks | None = None
        have = known.digest if known is not None and settings.reuse else ""
        try:
            self._opened = open_ref(self._exchange, settings, receiver.limits, part, have)
            self.layout, self.names = self._opened.layout, self._opened.names
            decoder = None if decoder_for is None else decoder_for(self.layout)
            self._chunks = Chunks(self._exchange, settings, self._opened, decoder)
            if known is not None and self._opened.is_same:
                self._take_known(known.source)
        except BaseException as error:
            self.fail(error)
            raise

    @property
    def peer(self) -> str:
        """Name of the sender."""
        return self._exchange.peer

    @property
    def _close_seconds(self) -> float:
        return _close_seconds(self._settings)

    @property
    def cost(self) -> Transfer:
        """Cost of the download so far, or in all once it is closed."""
        seconds = (self._ended or time.monotonic()) - self._began
        chunks = self._chunks
        reused = 0 if self._held is None else self._held.nbytes
        return Transfer(
            chunks.bytes,
            chunks.requests,
            chunks.chunks,
            chunks.repairs,
            seconds,
            reused,
            chunks.encoded,
            chunks.with_base,
        )

    def reuse(self, source: Source) -> None:
        """Fetch only what a source at hand lacks, if that is expected to pay.

        It is called before anything is received.

        Args:
            source: The source. One of another layout is of no use. It may be the memory that is
                received into, and stays as it is until then.

        Raises:
            StreamingError: The sender refused, fell silent, or is gone.
            FlstreamError: The source cannot be read.
        """
        opened, settings = self._opened, self._settings
        is_fetched = not opened.is_eager and bool(settings.chunk_size)
        can_compare = {"digests", "samples"} <= self._exchange.capabilities
        if not (settings.reuse and is_fetched and can_compare and source.layout == self.layout):
            return
        comparison = BlockComparison(self._exchange, self.layout, source, self._speeds)
        unit = comparison.unit(self._chunks.unit)
        blocks = None if unit is None else comparison.blocks()
        if blocks is not None and blocks.nbytes:
            self._chunks.block = unit
            self._hold(blocks)

    def begin(self) -> None:
        """Ask for the first chunks, which then come while something else is done.

        Raises:
            StreamingError: The sender is gone.
        """
        self._chunks.begin()

    def _take_known(self, source: Source) -> None:
        if source.layout != self.layout:
            raise ProtocolError(f"{self.peer} says that a body of another layout is the same")
        blocks = HeldBlocks(source, self.layout.nbytes)
        blocks.add(0, self.layout.nbytes)
        self._hold(blocks)

    def _hold(self, blocks: HeldBlocks) -> None:
        self._held = blocks
        for start, stop in blocks.runs(0, self.layout.nbytes):
            self._chunks.tracker.arrive(start, stop)

    def receive(self, start: int, stop: int, into: Sequence[memoryview]) -> None:
        """Receive the bytes ``[start, stop)`` into views of the same length in all.

        Args:
            start: End of the last call's range, 0 at first.
            stop: Multiple of the frame size, or the end of the body.
            into: Writable views.

        Raises:
            IntegrityError: A chunk came damaged, or not at all, more often than it is repaired.
            StreamingError: The sender refused, fell silent, is gone or broke the protocol.
        """
        if start != self._cursor:
            raise ValueError(f"a download goes on at byte {self._cursor}, not at {start}")
        began, left = time.monotonic(), list(into)
        while self._cursor < stop:
            size = min(self._chunks.unit, self.layout.nbytes - self._cursor)
            target, left = split(left, size)
            self._receive_next(target, self._cursor + size)
            self._cursor += size
            if self._cursor == self.layout.nbytes:
                self._expect_unchanged()
        self._receiving += time.monotonic() - began
        if self._cursor == self.layout.nbytes and self._held is None:
            self._speeds.sent(self._chunks.body_bytes, self._receiving)

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Receive the next bytes: see :meth:`receive`."""
        self.receive(start, stop, [into])

    def deliver(self, sink: Sink, on_range: OnRange | None) -> None:
        """Receive the whole body into a sink: see :class:`~flstream.model.source.Source`.

        A sink with random access gets each chunk as soon as it comes, and one that is resumed only
        the chunks that it lacks.

        Raises:
            StreamingError: As for :meth:`receive`.
            FlstreamError: The sink cannot be written.
        """
        if self._settings.chunk_size == 0:
            copy(BufferSource(self.layout, self.receive_whole()), sink, on_range=on_range)
            return

        # Not a function of its own with the sink in it, which an error that is kept would keep.
        commit = partial(_commit, sink, on_range)
        if not sink.random_access:
            for start, stop in self.layout.ranges(self._chunks.unit):
                self.receive(start, stop, sink.views(start, stop))
                commit(start, stop)
            return
        if sink.resumed:
            self.verify(sink.written, on_range)
        self._copy_held(sink, commit)
        began, before = time.monotonic(), self._chunks.body_bytes
        self.receive_all(sink.views, commit)
        self._speeds.sent(self._chunks.body_bytes - before, time.monotonic() - began)

    def _copy_held(self, sink: Sink, commit: OnRange) -> None:
        """Copy what is at hand to where it belongs, if it is not there."""
        if self._held is None:
            return
        for begin, end in self._held.runs(0, self.layout.nbytes):
            for start in range(begin, end, self._chunks.unit):
                stop = min(start + self._chunks.unit, end)
                if self._held.source is not cast(object, sink):
                    self._held.copy(start, stop, sink.views(start, stop))
                commit(start, stop)

    def verify(self, local: Place, on_range: OnRange | None = None) -> None:
        """Compare local chunks with the sender's by digest, so that only the others are fetched.

        Args:
            local: Returns the local bytes of a range, of any content; fewer where there are none.
            on_range: Called with the range of each chunk that is sound.

        Raises:
            StreamingError: The sender refused, fell silent, or is gone.
        """
        has_digests = "digests" in self._exchange.capabilities
        if self._opened.is_eager or not has_digests or self._chunks.unit > wire.MAX_DIGEST_BYTES:
            return  # all of it is being sent, or will be
        unit = self._chunks.unit
        step = max(min(wire.MAX_DIGEST_BYTES // unit, wire.MAX_DIGESTS), 1) * unit
        for start, stop in self.layout.ranges(step):
            asked = wire.Digest(
                self._exchange.token, self._exchange.next_number(), start, stop, unit
            )
            digests = self._exchange.ask(asked, wire.Digested).digests
            self._exchange.renew()
            for index, first in enumerate(range(start, stop, unit)):
                last = min(first + unit, stop)
                digest = int.from_bytes(digests[8 * index : 8 * index + 8], "little")
                if wire.digest_of(local(first, last)) == digest:
                    self._chunks.tracker.arrive(first, last)
                    if on_range is not None:
                        on_range(first, last)

    def receive_all(self, place: Place, on_chunk: OnRange) -> None:
        """Receive the whole body, each chunk into its place as soon as it comes.

        Args:
            place: Returns the views for a range; called again if the bytes came damaged.
            on_chunk: Called with each range once it is in place and sound.

        Raises:
            StreamingError: See :meth:`receive`.
        """
        while not self._chunks.is_complete:
            on_chunk(*self._chunks.take(place))
        self._expect_unchanged()

    def receive_whole(self) -> memoryview:
        """Receive the body into one new buffer."""
        body = memoryview(bytearray(self.layout.nbytes))
        self.receive_all(lambda start, stop: [body[start:stop]], lambda _start, _stop: None)
        return body

    def leave(self) -> None:
        """Take nothing more of what comes, so that the ref can be fetched again."""
        self._exchange.end()

    def fail(self, error: BaseException) -> None:
        """Inform the sender that the download has failed, without waiting for its answer."""
        reason = str(error)
        if not isinstance(error, FlstreamError):  # of a function of the user's, perhaps
            reason = f"{type(error).__name__}: {error}"
        exchange = self._exchange
        exchange.end()
        exchange.renew(self._close_seconds)
        with suppress(StreamingError):
            exchange.send(
                wire.Close(exchange.token, exchange.next_number(), False, quotable(reason))
            )

    def close(self, failure: str = "") -> None:
        """Inform the sender that this receiver is done, and stop counting the seconds.

        Args:
            failure: Reason for which the download failed; empty if it succeeded.

        Raises:
            RefusedError: The sender does not agree that it succeeded: what it offered was changed
                meanwhile, or it gave this receiver up.
            StreamingError: The sender cannot be informed. The bytes received are sound all the
                same.
        """
        self._ended = time.monotonic()
        _close(self._exchange, self._close_seconds, failure)

    def _expect_unchanged(self) -> None:
        """Have the sender say that what it offered was not changed while it was sent.

        Raises:
            RefusedError: It was.
        """
        if self._opened.is_eager:
            return  # it was sent at once, and the answer to a close says the same
        self._exchange.renew()
        self._exchange.ask(wire.Ping(self._exchange.token, self._exchange.next_number()), wire.Pong)

    def _receive_next(self, target: Sequence[memoryview], stop: int) -> None:
        """Receive the chunk at the cursor, and keep chunks that overtake it."""
        start = self._cursor

        def place(begin: int, end: int) -> Sequence[memoryview]:
            return part_of(target, begin - start, end - start)

        if self._held is not None:
            for begin, end in self._held.runs(start, stop):
                self._held.copy(begin, end, place(begin, end))
        for first in [first for first in self._early if first < stop]:
            arrived = self._early.pop(first)
            scatter([arrived], place(first, first + len(arrived)))
        while not self._chunks.tracker.has_arrived(start, stop):
            first, _ = self._chunks.take(
                lambda begin, end: (place if begin < stop else self._keep)(begin, end),
                self._has_room,
            )
            if first >= stop:
                self._early[first] = self._coming

    def _keep(self, start: int, stop: int) -> list[memoryview]:
        self._coming = memoryview(bytearray(stop - start))
        return [self._coming]

    def _has_room(self, start: int) -> bool:
        """Return whether a reader from front to back has room for a chunk now."""
        is_next = start < self._cursor + self._chunks.unit
        return is_next or len(self._early) * self._chunks.unit <= _MOST_EARLY_BYTES


def close_ref(
    receiver: Receiver, token: bytes, settings: StreamSettings, failure: str = ""
) -> None:
    """Inform the sender of a ref that this receiver is done with it, without having read it.

    Args:
        receiver: Receiving side of the channel.
        token: Token of the ref.
        settings: Timeouts.
        failure: Reason for which it is of no use; empty if it was used by other means.

    Raises:
        StreamingError: The sender cannot be informed, or does not agree.
    """
    _close(Exchange(receiver, token, settings), _close_seconds(settings), failure)


def _close_seconds(settings: StreamSettings) -> float:
    """Seconds that the answer to a close may take, which is as short as that to a ping."""
    return min(max(_CLOSE_SECONDS, settings.ping_timeout), settings.request_timeout)


def _close(exchange: Exchange, seconds: float, failure: str) -> None:
    exchange.renew(seconds)
    request = wire.Close(exchange.token, exchange.next_number(), not failure, failure)
    try:
        exchange.ask(request, wire.Closed)
    finally:
        exchange.end()


def _commit(sink: Sink, on_range: OnRange | None, start: int, stop: int) -> None:
    sink.commit(start, stop)
    if on_range is not None:
        on_range(start, stop)
