"""The chunks of a download: what is asked for, and what comes, in the order in which it comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from flstream.errors import BrokenStreamError, FlstreamError, IntegrityError
from flstream.model.copy import scatter
from flstream.streaming.chunk_tracker import ChunkTracker
from flstream.streaming.coding import HEAD_BYTES, FrameDecoder, unpack_head
from flstream.streaming.exchange import BROKEN, Exchange
from flstream.streaming.opening import OpenedRef
from flstream.streaming.settings import StreamSettings
from flstream.streaming.wire import (
    ENCODED,
    MAX_REQUESTS,
    MESSAGE,
    Fetch,
    Header,
    Refused,
    digest_of,
)

# Times that one chunk is fetched again before the download fails: more failures are not by chance.
_MOST_REPAIRS = 5
# Most damaged chunks that are asked for at a time; a sender refuses hundreds of requests.
_MOST_REPAIRS_UNDER_WAY = 64
# Requests that may take the place of one in the window if each is for as little.
_MOST_SHORT_REQUESTS = 32
# Most requests for blocks under way, whatever the window, so that a sender takes repairs as well.
_MOST_FOR_BLOCKS = MAX_REQUESTS - _MOST_REPAIRS_UNDER_WAY

Place = Callable[[int, int], Sequence[memoryview]]
"""Function that returns the views for the bytes of a range."""


class Chunks:
    """The chunks of a ref that a receiver has opened.

    Args:
        exchange: Messages of the download.
        settings: Sizes, window and timeouts.
        opened: The ref, as it was opened.
        decoder: What gives frames back that were encoded; None to have them as they are.

    Attributes:
        unit: Length of a chunk in bytes; the last one may be shorter.
        block: Length in bytes of the blocks of a chunk, some of which may be here without being
            fetched; None where chunks are fetched whole. It is set before anything is fetched.
        bytes: Bytes of frames received so far, as they came.
        body_bytes: Bytes of the body that they stand for.
        encoded: Bytes of the body of which frames came that were encoded.
        with_base: Bytes of these whose frames were encoded with the model that both sides have.
        chunks: Number of chunks received so far.
        requests: Number of requests so far.
        repairs: Number of these requests that were for bytes that had come before or been lost.
    """

    def __init__(
        self,
        exchange: Exchange,
        settings: StreamSettings,
        opened: OpenedRef,
        decoder: FrameDecoder | None = None,
    ) -> None:
        self.bytes = self.body_bytes = self.chunks = self.requests = self.repairs = 0
        self.encoded = self.with_base = 0
        self.unit = opened.frame_size or opened.layout.nbytes
        self.block: int | None = None
        self._exchange = exchange
        self._settings = settings
        self._opened = opened
        self._decoder = decoder if opened.frame_size else None
        self._layout = opened.layout
        self._decoder_is_sound = True
        # A model in one frame has its header before it.
        self._head = 0 if settings.chunk_size else len(opened.layout.plain_header)
        # Offset up to which the body was requested.
        self._asked = 0

    @cached_property
    def tracker(self) -> ChunkTracker:
        """State of each chunk, made at first use: a sink has refused a false layout by then."""
        tracker = ChunkTracker(self._layout.nbytes, self.unit, self.block)
        self._exchange.due = self._due
        self._exchange.pending = tracker.under_way.keys
        if self._opened.is_eager and not self._opened.is_same:
            self._asked = self._layout.nbytes
            tracker.request(self._opened.number, 0, self._asked, urgent=False)
            self.requests += 1
        return tracker

    @property
    def is_complete(self) -> bool:
        """Whether every chunk has arrived."""
        return self.tracker.complete

    def begin(self) -> None:
        """Send the first requests; :meth:`take` sends them too, if nobody has."""
        try:
            self._send_due()
        except BROKEN as error:
            self._exchange.recover(error)

    def take(
        self, place: Place, has_room: Callable[[int], bool] = lambda _: True
    ) -> tuple[int, int]:
        """Receive the next chunk that is wanted, wherever in the body it belongs.

        Args:
            place: Returns the views for its range; called again if its bytes came damaged.
            has_room: Returns whether a chunk that begins at an offset can be taken now. One that
                cannot is fetched again later.

        Returns:
            The range of the chunk, which is in its place and sound.

        Raises:
            StreamingError: It does not come, or the sender does not keep to the protocol.
        """
        exchange = self._exchange
        with exchange:
            while True:
                try:
                    if exchange.has_missed:
                        exchange.has_missed = False
                        self._restart()
                    exchange.expect_left()
                    self._send_due()
                    header = exchange.header()
                    taken = None
                    try:
                        if header.kind == MESSAGE:
                            self._handle(header)
                        else:
                            taken = self._receive(header, place, has_room)
                    finally:
                        exchange.done(of_use=taken is not None)
                except BROKEN as error:
                    exchange.recover(error)
                else:
                    if taken is not None:
                        return taken

    def _receive(
        self, header: Header, place: Place, has_room: Callable[[int], bool]
    ) -> tuple[int, int] | None:
        """Receive a frame into its place; return its range if it was wanted and is sound."""
        tracker = self.tracker
        if header.request not in tracker.under_way:
            self._exchange.count_useless(header.length)  # of a request that was given up
            return None
        start, stop = header.start, header.start + header.length - self._head
        if header.kind == ENCODED:
            stop = tracker.next_stop(header.request)
            if self._decoder is None or header.length >= stop - start:
                raise BrokenStreamError(f"{self._exchange.peer} sent an encoded frame unasked")
        if not tracker.take(header.request, start, stop):
            raise BrokenStreamError(
                f"{self._exchange.peer} sent bytes {start} to {stop}, which are not what was to "
                "come next of a request"
            )
        if tracker.has_arrived(start, stop):
            self._exchange.count_useless(header.length)
            return None
        if not has_room(start):
            tracker.damaged.append((start, stop))  # it is to come again
            return None
        if header.kind == ENCODED:
            is_sound = self._decode(header, place(start, stop), stop)
        else:
            head = [memoryview(bytearray(self._head))] if self._head else []
            is_sound = self._exchange.payload([*head, *place(start, stop)]) == header.digest
        if not is_sound:
            self._fetch_again(start, stop)
            return None
        tracker.arrive(start, stop)
        self.bytes += header.length - self._head
        self.body_bytes += stop - start
        self.chunks += 1
        if header.request not in tracker.under_way:
            self._exchange.renew()  # a request has been answered in full
        return start, stop

    def _decode(self, header: Header, views: Sequence[memoryview], stop: int) -> bool:
        """Receive an encoded frame into its place; return whether it is what was encoded.

        Where it is not, though it came as it was sent, the sides have other models or codecs; then
        nothing more is fetched encoded.
        """
        payload = memoryview(bytearray(header.length))
        if self._exchange.payload([payload]) != header.digest:
            return False
        assert self._decoder is not None
        digest, has_base = unpack_head(payload, self._exchange.peer)
        out = views[0] if len(views) == 1 else memoryview(bytearray(stop - header.start))
        try:
            data = payload[HEAD_BYTES:]
            self._decoder.decode(data, out, header.start, stop, has_base=has_base)
        except FlstreamError:  # of a codec, or of a file with a model: the bytes come without
            is_sound = False
        else:
            is_sound = digest_of([out]) == digest
        if not is_sound:
            self._decoder_is_sound = False
            return False
        if len(views) > 1:
            scatter([out], views)
        self.encoded += stop - header.start
        self.with_base += stop - header.start if has_base else 0
        return True

    def _handle(self, header: Header) -> None:
        reply = self._exchange.message(header)
        if isinstance(reply, Refused) and reply.request in self.tracker.under_way:
            raise self._exchange.refusal(reply)

    def _restart(self) -> None:
        """Ask anew for what is missing: nothing more will come of earlier requests."""
        self.repairs += len(self.tracker.under_way)
        self.tracker.restart()
        self._asked = 0

    def _send_due(self) -> None:
        """Send the requests that are due: for damaged chunks, and for the next ones."""
        tracker = self.tracker
        while tracker.damaged and self._may_repair:
            damaged = tracker.damaged.popleft()
            self.repairs += 1
            self._fetch(*damaged, urgent=True)
        size = self._settings.bytes_a_request if self._opened.frame_size else self._layout.nbytes
        while self._has_window(size):
            missing = tracker.missing_from(self._asked, size)
            if missing is None:
                return
            self._fetch(*missing, urgent=False)
            self._asked = missing[1]

    def _has_window(self, size: int) -> bool:
        """Return whether another request may be under way: of blocks, more than of whole chunks."""
        requests = self.tracker.under_way.values()
        if self.block is None:
            return len(requests) < self._settings.window
        if len(requests) >= _MOST_FOR_BLOCKS:
            return False
        least = size // _MOST_SHORT_REQUESTS
        return sum(max(each.size, least) for each in requests) < self._settings.window * size

    def _fetch_again(self, start: int, stop: int) -> None:
        """Have a chunk fetched again that came damaged.

        Raises:
            IntegrityError: It has too often.
        """
        attempts = self.tracker.damage(start, stop)
        if attempts > _MOST_REPAIRS:
            raise IntegrityError(
                f"bytes {start} to {stop} from {self._exchange.peer} "
                f"(tensor {self._layout.name_at(start)!r}) came {attempts} times, and never "
                "matched their digest; the sender's memory, or what it offers, is being changed"
            )

    @property
    def _may_repair(self) -> bool:
        requests = self.tracker.under_way.values()
        urgent = sum(request.urgent for request in requests)
        return urgent < _MOST_REPAIRS_UNDER_WAY and len(requests) < MAX_REQUESTS

    def _fetch(self, start: int, stop: int, *, urgent: bool) -> None:
        number = self._exchange.next_number()
        self.tracker.request(number, start, stop, urgent=urgent)
        self.requests += 1
        token, size = self._exchange.token, self._opened.frame_size
        can_encode = self._decoder_is_sound and "encoded" in self._exchange.capabilities
        decoder = self._decoder if can_encode else None
        base = "" if decoder is None else decoder.base
        self._exchange.send(
            Fetch(token, number, start, stop, size, urgent, decoder is not None, base)
        )

    def _due(self) -> str:
        """Describe the first bytes that have not come, for the message of an error."""
        starts = [request.next for request in self.tracker.under_way.values()]
        if not starts:
            return "anything"
        start = min(starts)
        return f"the bytes from {start} on (tensor {self._layout.name_at(start)!r})"
