"""A ref at the other end of a channel, fetched range by range, and fetched again where it broke."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property

from flstream.errors import ProtocolError, RefusedError
from flstream.model.body import Scratch
from flstream.model.layout import ALIGNMENT
from flstream.streaming.conversation import Conversation
from flstream.streaming.layouts import layout_told
from flstream.streaming.receiver import Patience, Receiver, StreamSettings
from flstream.streaming.requesting import Requests
from flstream.streaming.wire import (
    MAX_DIGEST_BYTES,
    MAX_DIGESTS,
    MESSAGE,
    PUSHED,
    Close,
    Closed,
    Credit,
    Digest,
    Digested,
    Header,
    Open,
    Opened,
    Refused,
    Reply,
    Waiting,
    digest_of,
)
from flstream.telemetry.events import Transfer
from flstream.transport.views import split

# A reader from front to back keeps chunks that overtake a lost one, up to this many bytes: as much
# as a pipe holds when the repair is asked for.
_MOST_EARLY_BYTES = 8 << 20
# A body that is not longer comes together with its layout. What comes in vain, to one who has part
# of it or no place for it, is then no more than that.
_MOST_EAGER_BYTES = 64 << 10
# How long a receiver that has everything waits for the sender to say that it heard so.
_CLOSE_SECONDS = 5.0

Place = Callable[[int, int], Sequence[memoryview]]
"""Where the bytes of a range are to be put."""


class RemoteSource:
    """A ref offered by a receiver's peer.

    It is read once: from front to back with :meth:`receive`, or in whatever order the chunks come
    with :meth:`receive_all`. Requests for what comes next are already under way while a range is
    being read; the channel holds the sender back, so this side needs no memory for them. A chunk
    that is damaged or lost is fetched again, and only that.

    Args:
        receiver: where to fetch.
        token: the ref.
        settings: sizes, window and timeouts.

    Attributes:
        layout: as the sender told it.

    Raises:
        StreamingError: the sender refused, fell silent, or is gone.
    """

    def __init__(self, receiver: Receiver, token: bytes, settings: StreamSettings) -> None:
        self._receiver = receiver
        self._talk = Conversation(receiver, token, settings)
        self._token = token
        self._settings = settings
        self._patience = Patience(receiver, settings.request_timeout)
        self._began = time.monotonic()
        self._ended: float | None = None
        self._bytes = self._chunks = 0
        self._cursor = 0
        self._early: dict[int, memoryview] = {}
        self._opening = receiver.next_number()
        self._most_eager = 0
        if settings.frame_size and not settings.push:
            self._most_eager = min(_MOST_EAGER_BYTES, settings.bytes_a_request)
        opened = self._open()
        self.layout = layout_told(opened.layout, self.peer)
        self._talk.allow(self.layout.nbytes)
        self._head = 0 if settings.chunk_size else len(self.layout.plain_header)
        self._pushed = self._is_pushed(opened)
        self._frame_size = opened.chunk_size if self._pushed else settings.frame_size
        self._unit = self._frame_size or self.layout.nbytes
        self._limit = opened.limit
        if opened.request == PUSHED and not self._pushed:
            self._talk.send(Credit(token, receiver.next_number(), 0))

    @cached_property
    def _requests(self) -> Requests:
        # Made when they are needed: a layout that lies about its size has been refused by then.
        requests = Requests(
            self._talk,
            self._receiver,
            self._token,
            self._settings,
            self.layout,
            self._frame_size,
            self._patience,
        )
        if self._pushed:
            requests.expect_push(self._limit)
        elif self._is_eager:
            requests.expect_eager(self._opening)
        return requests

    @property
    def peer(self) -> str:
        """Who offers the ref."""
        return self._receiver.peer

    @property
    def cost(self) -> Transfer:
        """What the download has cost so far, or in all once it is closed."""
        seconds = (self._ended or time.monotonic()) - self._began
        requests, repairs = self._requests.count, self._requests.repairs
        return Transfer(self._bytes, requests, self._chunks, repairs, seconds)

    def receive(self, start: int, stop: int, into: Sequence[memoryview]) -> None:
        """Receive the bytes ``[start, stop)`` into views that are together as long.

        Args:
            start: where the last call stopped, 0 at first.
            stop: a multiple of the frame size, or the end of the body.
            into: writable views.

        Raises:
            IntegrityError: a chunk came damaged, or not at all, more often than it is asked for.
            StreamingError: the sender refused, fell silent, is gone or broke the protocol.
        """
        if start != self._cursor:
            raise ValueError(f"a download goes on at byte {self._cursor}, not at {start}")
        left = list(into)
        while self._cursor < stop:
            size = min(self._unit, self.layout.nbytes - self._cursor)
            target, left = split(left, size)
            self._receive_next(target)
            self._cursor += size

    def views(self, start: int, stop: int, scratch: Scratch) -> list[memoryview]:
        """The next bytes, received into ``scratch``: see :meth:`receive`."""
        view = scratch.take(stop - start)
        self.receive(start, stop, [view])
        return [view]

    def verify(self, local: Place, on_chunk: Callable[[int, int], None]) -> None:
        """Find out which chunks are here already, so that only the others are fetched.

        Args:
            local: gives what is here for a range, which may be anything.
            on_chunk: called with the range of each chunk that is sound.

        Raises:
            StreamingError: the sender refused, fell silent, or is gone.
        """
        if self._is_eager:
            return  # all of it is on its way
        self._requests.end_push()
        unit = self._unit
        step = max(min(MAX_DIGEST_BYTES // unit, MAX_DIGESTS), 1) * unit
        for start, stop in self.layout.ranges(step):
            asked = Digest(self._token, self._receiver.next_number(), start, stop, unit)
            digests = self._talk.ask(asked, Digested, self._patience).digests
            self._patience.renew()
            for index, first in enumerate(range(start, stop, unit)):
                last = min(first + unit, stop)
                digest = int.from_bytes(digests[8 * index : 8 * index + 8], "little")
                if digest_of(local(first, last)) == digest:
                    self._requests.ledger.arrive(first)
                    on_chunk(first, last)

    def receive_all(self, place: Place, on_chunk: Callable[[int, int], None]) -> None:
        """Receive the whole body, each chunk where it belongs as soon as it comes.

        Args:
            place: gives the views for a range. They may be asked for twice, if what came into
                them was damaged.
            on_chunk: called with each range once it is there and sound.

        Raises:
            StreamingError: as for :meth:`receive`.
        """
        while not self._requests.ledger.complete:
            on_chunk(*self._take_frame(place))

    def receive_whole(self) -> memoryview:
        """Receive the body into one new buffer."""
        body = memoryview(bytearray(self.layout.nbytes))
        self.receive_all(lambda start, stop: [body[start:stop]], lambda _start, _stop: None)
        return body

    def close(self, failure: str = "") -> None:
        """Tell the sender that this receiver is done, and end the clock.

        Args:
            failure: why the model is of no use; empty if all is well.

        Raises:
            StreamingError: the sender cannot be told. What was received is sound all the same.
        """
        self._ended = time.monotonic()
        number = self._receiver.next_number()
        patience = Patience(self._receiver, min(_CLOSE_SECONDS, self._settings.request_timeout))
        self._talk.ask(Close(self._token, number, not failure, failure), Closed, patience)

    def _open(self) -> Opened:
        frame_size = self._settings.frame_size
        request = Open(self._token, self._opening, self._most_eager, frame_size)
        opened = self._talk.ask(request, Opened, self._patience, unasked=self._settings.push)
        self._patience.renew()
        return opened

    @property
    def _is_eager(self) -> bool:
        """Whether the sender sends the body without being asked again."""
        return 0 < self.layout.nbytes <= self._most_eager

    @property
    def _first_fetch(self) -> int:
        """The number of the first request that asked for bytes."""
        return self._opening if self._is_eager else self._opening + 1

    def _is_pushed(self, opened: Opened) -> bool:
        """Whether the model comes unasked, in frames that fit the places there are for them."""
        size, limit = opened.chunk_size, self._settings.frame_size
        return opened.request == PUSHED and size > 0 and not size % ALIGNMENT and not limit % size

    def _receive_next(self, target: Sequence[memoryview]) -> None:
        """Get the chunk at the cursor, keeping for later what overtakes it."""
        start = self._cursor
        arrived = self._early.pop(start, None)
        while arrived is None:
            first, _ = self._take_frame(
                lambda begin, end: target if begin == start else self._keep(begin, end)
            )
            if first == start:
                return
        for view in target:
            view[:] = arrived[: len(view)]
            arrived = arrived[len(view) :]

    def _keep(self, start: int, stop: int) -> list[memoryview]:
        view = self._early[start] = memoryview(bytearray(stop - start))
        return [view]

    def _is_early(self, start: int) -> bool:
        """Whether a reader from front to back has no room for this chunk now."""
        return len(self._early) * self._unit > _MOST_EARLY_BYTES and start != self._cursor

    def _take_frame(self, place: Place) -> tuple[int, int]:
        """Take in the next chunk that is wanted, wherever in the body it lies."""
        requests, ledger = self._requests, self._requests.ledger
        while True:
            requests.go_on()
            header = self._receiver.packets.header(requests.wait)
            start, stop = header.start, header.start + header.length - self._head
            if header.kind == MESSAGE:
                self._heed(self._talk.message(header, requests.wait))
                continue
            if header.token == self._token:
                if not ledger.is_due(header.request, start, stop):
                    raise ProtocolError(
                        f"{self.peer} sent bytes {start} to {stop}, which are no chunk of what was "
                        "asked for"
                    )
                ledger.frame(header.request, start, stop)
            if header.token != self._token or not ledger.is_wanted(start, stop):
                self._repeat(header.length)
                continue
            if self._is_early(start):
                self._repeat(header.length)
                ledger.damage(start)
                continue
            if self._receive_frame(header, place(start, stop)):
                ledger.arrive(start)
                return start, stop
            self._early.pop(start, None)
            ledger.damage(start)

    def _receive_frame(self, header: Header, views: Sequence[memoryview]) -> bool:
        head = [memoryview(bytearray(self._head))] if self._head else []
        digest = self._receiver.packets.payload([*head, *views], self._requests.wait)
        if digest is None:
            self._requests.failure = "it was cut short"
            return False
        if digest != header.digest:
            self._requests.failure = "it does not match its digest"
            return False
        self._bytes += header.length - self._head
        self._chunks += 1
        if header.request not in self._requests.ledger.under_way:
            self._patience.renew()  # a request has been answered in full
        return True

    def _repeat(self, length: int) -> None:
        """Pass over a frame that is of no use: one of an earlier download, or here already."""
        self._talk.count_useless(length)
        self._receiver.packets.skip(length, self._requests.wait)

    def _heed(self, reply: Reply | None) -> None:
        match reply:
            # Also one of a probe: what refused the requests before it may have been lost.
            case Refused(number, reason) if number >= self._first_fetch or (
                self._pushed and number == PUSHED
            ):
                raise RefusedError(f"{self.peer} refused: {reason}")
            case Waiting(number, waiting):
                # Everything it sent before this answer has been read by now.
                self._requests.give_up_but(waiting, before=number)
