"""A ref at the other end of a channel, fetched range by range, and fetched again where it broke."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property

from flstream.errors import (
    IntegrityError,
    LayoutError,
    ProtocolError,
    RefusedError,
)
from flstream.model.body import Scratch
from flstream.model.layout import Layout, parse_header
from flstream.streaming.conversation import Conversation
from flstream.streaming.ledger import Ledger
from flstream.streaming.receiver import Patience, Receiver, StreamSettings
from flstream.streaming.wire import (
    MAX_DIGEST_BYTES,
    MAX_DIGESTS,
    MESSAGE,
    Close,
    Closed,
    Digest,
    Digested,
    Fetch,
    Header,
    Open,
    Opened,
    Probe,
    Refused,
    Reply,
    Waiting,
    digest_of,
)
from flstream.telemetry.events import Transfer
from flstream.transport.views import split

# How often a chunk is fetched again before the download fails. What breaks as often as that does
# not break by chance.
_MOST_REPAIRS = 5
# The first repair is at once; each further one of the same chunk waits twice as long as the last.
_BACKOFF_SECONDS = 0.05
# A reader from front to back keeps chunks that overtake a lost one, up to this many bytes: as much
# as a pipe holds when the repair is asked for.
_MOST_EARLY_BYTES = 8 << 20
# Scattered losses are repaired by so many requests at a time; a sender refuses hundreds of them.
_MOST_REPAIRS_UNDER_WAY = 64
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
        self._bytes = self._requests = self._chunks = self._retries = 0
        self._requested = 0
        self._cursor = 0
        self._early: dict[int, memoryview] = {}
        self._not_before = 0.0
        self._failure = "nothing came"
        self._opening = receiver.next_number()
        self.layout = self._open()
        self._talk.allow(self.layout.nbytes)
        self._head = 0 if settings.chunk_size else len(self.layout.plain_header)
        self._unit = settings.frame_size or self.layout.nbytes

    @cached_property
    def _ledger(self) -> Ledger:
        # Made when it is needed: a layout that lies about its size has been refused by then.
        return Ledger(self.layout.nbytes, self._unit)

    @property
    def peer(self) -> str:
        """Who offers the ref."""
        return self._receiver.peer

    @property
    def cost(self) -> Transfer:
        """What the download has cost so far, or in all once it is closed."""
        seconds = (self._ended or time.monotonic()) - self._began
        return Transfer(self._bytes, self._requests, self._chunks, self._retries, seconds)

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
        unit = self._settings.frame_size
        step = max(min(MAX_DIGEST_BYTES // unit, MAX_DIGESTS), 1) * unit
        for start, stop in self.layout.ranges(step):
            asked = Digest(self._token, self._receiver.next_number(), start, stop, unit)
            digests = self._talk.ask(asked, Digested, self._patience).digests
            self._patience.renew()
            for index, first in enumerate(range(start, stop, unit)):
                last = min(first + unit, stop)
                digest = int.from_bytes(digests[8 * index : 8 * index + 8], "little")
                if digest_of(local(first, last)) == digest:
                    self._ledger.arrive(first)
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
        while not self._ledger.complete:
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

    def _open(self) -> Layout:
        opened = self._talk.ask(Open(self._token, self._opening), Opened, self._patience)
        self._patience.renew()
        try:
            layout, _ = parse_header(opened.layout, self.peer)
        except LayoutError as error:
            raise ProtocolError(str(error)) from error
        return layout

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
        while True:
            self._request_ahead()
            header = self._receiver.packets.header(self._wait)
            start, stop = header.start, header.start + header.length - self._head
            if header.kind == MESSAGE:
                self._heed(self._talk.message(header, self._wait))
                continue
            if header.token == self._token:
                if not self._ledger.is_due(header.request, start, stop):
                    raise ProtocolError(
                        f"{self.peer} sent bytes {start} to {stop}, which are no chunk of what was "
                        "asked for"
                    )
                self._ledger.frame(header.request, start, stop)
            if header.token != self._token or not self._ledger.is_wanted(start, stop):
                self._repeat(header.length)
                continue
            if self._is_early(start):
                self._repeat(header.length)
                self._ledger.damage(start)
                continue
            if self._receive_frame(header, place(start, stop)):
                self._ledger.arrive(start)
                return start, stop
            self._early.pop(start, None)
            self._ledger.damage(start)

    def _receive_frame(self, header: Header, views: Sequence[memoryview]) -> bool:
        head = [memoryview(bytearray(self._head))] if self._head else []
        if not self._receiver.packets.payload([*head, *views], self._wait):
            self._failure = "it was cut short"
            return False
        if digest_of([*head, *views]) != header.digest:
            self._failure = "it does not match its digest"
            return False
        self._bytes += header.length - self._head
        self._chunks += 1
        if header.request not in self._ledger.under_way:
            self._patience.renew()  # a request has been answered in full
        return True

    def _repeat(self, length: int) -> None:
        """Pass over a frame that is of no use: one of an earlier download, or here already."""
        self._talk.count_useless(length)
        self._receiver.packets.skip(length, self._wait)

    def _request_ahead(self) -> None:
        """Fetch again what was lost, and fetch what is next."""
        if self._can_repair and time.monotonic() >= self._not_before:
            self._repair()
        if self._settings.chunk_size == 0:
            size = self.layout.nbytes
        else:
            size = self._settings.bytes_a_request
        while len(self._ledger.under_way) < self._settings.window:
            missing = self._ledger.missing_from(self._requested, size)
            if missing is None:
                return
            self._fetch(*missing, urgent=False)
            self._requested = missing[1]

    @property
    def _can_repair(self) -> int:
        """How many requests for what was lost may be sent now."""
        if not self._ledger.lost:
            return 0
        under_way = sum(request.urgent for request in self._ledger.under_way.values())
        return max(_MOST_REPAIRS_UNDER_WAY - under_way, 0)

    def _repair(self) -> None:
        attempts = 1
        ranges = self._ledger.repairs(self._settings.request_size, self._can_repair)
        for start, stop, attempt in ranges:
            if attempt > _MOST_REPAIRS:
                raise IntegrityError(
                    f"bytes {start} to {stop} from {self.peer} (tensor "
                    f"{self.layout.name_at(start)!r}) were fetched {attempt} times in vain: "
                    f"{self._failure}"
                )
            attempts = max(attempts, attempt)
            self._retries += 1
            self._fetch(start, stop, urgent=True)
        self._not_before = time.monotonic() + _BACKOFF_SECONDS * 2.0 ** (attempts - 1)

    def _fetch(self, start: int, stop: int, *, urgent: bool) -> None:
        number = self._receiver.next_number()
        self._ledger.request(number, start, stop, urgent=urgent)
        self._requests += 1
        frame = self._settings.frame_size
        self._talk.send(Fetch(self._token, number, start, stop, frame, urgent))

    def _wait(self) -> bool:
        """Wait for bytes; when they fail to come, find out why, and fetch again what was lost."""
        seconds = self._settings.probe_after
        if self._can_repair:
            seconds = min(seconds, max(self._not_before - time.monotonic(), 0.0))
        if self._patience.wait(seconds, self._due):
            return True
        if self._can_repair:
            if time.monotonic() >= self._not_before:
                self._repair()
        else:
            self._talk.send(Probe(self._token, self._receiver.next_number()))
        return False

    def _due(self) -> str:
        starts = [request.next for request in self._ledger.under_way.values()]
        if not starts:
            return "anything"
        start = min(starts)
        return f"the bytes from {start} on (tensor {self.layout.name_at(start)!r})"

    def _heed(self, reply: Reply | None) -> None:
        match reply:
            # Also one of a probe: what refused the requests before it may have been lost.
            case Refused(number, reason) if number > self._opening:
                raise RefusedError(f"{self.peer} refused: {reason}")
            case Waiting(number, waiting):
                # Everything it sent before this answer has been read by now.
                self._failure = "it was lost on the way"
                for older in [each for each in self._ledger.under_way if each < number]:
                    if older not in waiting:
                        self._ledger.give_up(older)
