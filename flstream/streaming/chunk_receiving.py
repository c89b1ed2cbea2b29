"""Receiving the chunks of a ref in the order in which they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from flstream.errors import BrokenStreamError
from flstream.streaming.exchange import BROKEN, Exchange
from flstream.streaming.opening import OpenedRef
from flstream.streaming.requesting import Requests
from flstream.streaming.settings import StreamSettings
from flstream.streaming.wire import MESSAGE, Header, Refused

Place = Callable[[int, int], Sequence[memoryview]]
"""Function that returns the views for the bytes of a range."""


class ChunkReceiver:
    """The chunks of a ref that a receiver has opened.

    Args:
        exchange: Messages of the download.
        settings: Sizes, window and timeouts.
        opened: The ref, as it was opened.

    Attributes:
        unit: Length of a chunk in bytes; the last one may be shorter.
        bytes: Bytes of the body received so far.
        chunks: Number of chunks received so far.
    """

    def __init__(self, exchange: Exchange, settings: StreamSettings, opened: OpenedRef) -> None:
        self.bytes = self.chunks = 0
        self.unit = opened.frame_size or opened.layout.nbytes
        self._exchange = exchange
        self._settings = settings
        self._opened = opened
        # A model in one frame has its header before it.
        self._head = 0 if settings.chunk_size else len(opened.layout.plain_header)

    @cached_property
    def requests(self) -> Requests:
        """Requests for the chunks, made at first use.

        By then, a sink has refused a layout of a false size.
        """
        opened = self._opened
        requests = Requests(self._exchange, self._settings, opened.layout, opened.frame_size)
        requests.expect(opened.number, opened.coming)
        return requests

    @property
    def is_complete(self) -> bool:
        """Whether every chunk has arrived."""
        return self.requests.tracker.complete

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
                        self.requests.restart()
                    exchange.expect_left()
                    self.requests.send_due()
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
        requests, tracker = self.requests, self.requests.tracker
        start, stop = header.start, header.start + header.length - self._head
        if header.request not in tracker.under_way:
            self._exchange.count_useless(header.length)  # of a request that was given up
            return None
        if not tracker.take(header.request, start, stop):
            raise BrokenStreamError(
                f"{self._exchange.peer} sent bytes {start} to {stop}, which are not what was to "
                "come next of a request"
            )
        if tracker.has_arrived(start):
            self._exchange.count_useless(header.length)
            return None
        if not has_room(start):
            requests.fetch_again(start, is_damaged=False)
            return None
        head = [memoryview(bytearray(self._head))] if self._head else []
        if self._exchange.payload([*head, *place(start, stop)]) != header.digest:
            requests.fetch_again(start)
            return None
        tracker.arrive(start)
        self.bytes += stop - start
        self.chunks += 1
        if header.request not in tracker.under_way:
            self._exchange.renew()  # a request has been answered in full
        return start, stop

    def _handle(self, header: Header) -> None:
        reply = self._exchange.message(header)
        if isinstance(reply, Refused) and reply.request in self.requests.tracker.under_way:
            raise self._exchange.refusal(reply)
