"""Receiving the chunks of a ref in the order in which they come, and having lost ones repaired."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from flstream.errors import ProtocolError
from flstream.streaming.download_messages import DownloadMessages
from flstream.streaming.opening import OpenedRef
from flstream.streaming.receiver import Patience, Receiver
from flstream.streaming.requesting import Requests
from flstream.streaming.settings import StreamSettings
from flstream.streaming.wire import MESSAGE, PUSHED, Header, Refused, Reply, Waiting

Place = Callable[[int, int], Sequence[memoryview]]
"""Function that returns the views for the bytes of a range."""


class ChunkReceiver:
    """The chunks of a ref that a receiver has opened.

    Args:
        receiver: Receiving side of the channel.
        messages: Messages of the download.
        token: Token of the ref.
        settings: Sizes, window and timeouts.
        opened: The ref, as it was opened.
        patience: Time of a request.

    Attributes:
        unit: Length of a chunk in bytes; the last one may be shorter.
        bytes: Bytes of the body received so far.
        chunks: Number of chunks received so far.
    """

    def __init__(
        self,
        receiver: Receiver,
        messages: DownloadMessages,
        token: bytes,
        settings: StreamSettings,
        opened: OpenedRef,
        patience: Patience,
    ) -> None:
        self.bytes = self.chunks = 0
        self.unit = opened.frame_size or opened.layout.nbytes
        self._receiver = receiver
        self._messages = messages
        self._token = token
        self._settings = settings
        self._opened = opened
        self._patience = patience
        # A model in one frame has its header before it.
        self._head = 0 if settings.chunk_size else len(opened.layout.plain_header)
        receiver.packets.longest_frame = self.unit + self._head

    @cached_property
    def requests(self) -> Requests:
        """Requests for the chunks, made at first use.

        By then, a sink has refused a layout of a false size.
        """
        requests = Requests(
            self._messages,
            self._receiver,
            self._token,
            self._settings,
            self._opened.layout,
            self._opened.frame_size,
            self._patience,
        )
        if self._opened.is_pushed:
            requests.expect_push(self._opened.limit)
        elif self._opened.is_eager:
            requests.expect_eager(self._opened.number)
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
        with self._patience:
            return self._take(place, has_room)

    def _take(self, place: Place, has_room: Callable[[int], bool]) -> tuple[int, int]:
        requests, tracker = self.requests, self.requests.tracker
        while True:
            self._patience.expect_left(requests.due)
            requests.send_due()
            header = self._messages.header(requests.wait)
            start, stop = header.start, header.start + header.length - self._head
            if header.kind == MESSAGE:
                self._handle(self._messages.message(header, requests.wait))
                continue
            if header.token == self._token:
                if not tracker.is_due(header.request, start, stop):
                    raise ProtocolError(
                        f"{self._receiver.peer} sent bytes {start} to {stop}, which are no chunk "
                        "of what was asked for"
                    )
                tracker.frame(header.request, start, stop)
            if header.token != self._token or not tracker.is_wanted(start, stop):
                self._skip(header.length)
                continue
            if not has_room(start):
                self._skip(header.length)
                tracker.damage(start)
                continue
            if self._receive(header, place(start, stop)):
                tracker.arrive(start)
                return start, stop
            tracker.damage(start)

    def _receive(self, header: Header, views: Sequence[memoryview]) -> bool:
        head = [memoryview(bytearray(self._head))] if self._head else []
        digest = self._receiver.packets.payload([*head, *views], self.requests.wait)
        if digest is None:
            self.requests.failure = "it was cut short"
            return False
        if digest != header.digest:
            self.requests.failure = "it does not match its digest"
            return False
        self.bytes += header.length - self._head
        self.chunks += 1
        if header.request not in self.requests.tracker.under_way:
            self._patience.renew()  # a request has been answered in full
        return True

    def _skip(self, length: int) -> None:
        """Skip a frame of no use: of an earlier download, or of a chunk that has arrived."""
        self._messages.count_useless(length)
        self._receiver.packets.skip(length, self.requests.wait)

    def _handle(self, reply: Reply | None) -> None:
        match reply:
            # Also the answer to a probe: refusals of requests before it may have been lost.
            case Refused(number) if number >= self._opened.first_fetch or (
                self._opened.is_pushed and number == PUSHED
            ):
                raise self._messages.refusal(reply)
            case Waiting(number, waiting):
                # All that was sent before this answer has been read by now.
                self.requests.give_up_except(waiting, before=number)
