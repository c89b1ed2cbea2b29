"""The receiver's side: a ref at the other end of a channel, fetched range by range."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from flstream.errors import (
    FlstreamError,
    IntegrityError,
    LayoutError,
    ProtocolError,
    RefusedError,
    StreamingError,
)
from flstream.model.body import Scratch, Sink
from flstream.model.layout import MAX_HEADER_BYTES, Layout, parse_header
from flstream.streaming.wire import (
    FRAME,
    HEADER_BYTES,
    MESSAGE,
    Close,
    Fetch,
    Header,
    Open,
    Opened,
    Refused,
    Reply,
    Request,
    decode_reply,
    digest_of,
    pack_message,
)
from flstream.telemetry.events import Transfer
from flstream.transport.channel import AbortSignal, Channel, Deadline
from flstream.transport.views import split

SinkT = TypeVar("SinkT", bound=Sink)

# How much of a whole serialised model is copied out at a time.
_COPY_STEP = 4 << 20


class StreamSettings(NamedTuple):
    """How a receiver fetches.

    Attributes:
        chunk_size: longest frame in bytes, a multiple of 16; 0 fetches the whole model serialised
            into one message.
        request_size: bytes that one request covers. It is cut down to whole chunks; if it is less
            than a chunk, chunks are as short as it.
        window: requests in flight.
        request_timeout: seconds of waiting for the sender that one request may cost.
    """

    chunk_size: int = 2 << 20
    request_size: int = 64 << 20
    window: int = 2
    request_timeout: float = 600.0

    @property
    def frame_size(self) -> int:
        """Bytes of the longest frame, or 0 for the whole model at once."""
        return min(self.chunk_size, self.request_size)

    @property
    def bytes_a_request(self) -> int:
        """Bytes that a request covers, a whole number of frames."""
        return self.request_size // self.frame_size * self.frame_size


class Receiver:
    """The end of a channel at which snapshots arrive; a download service is at the other.

    One thread uses it at a time, for one download after another.

    Args:
        channel: what carries the packets.
        peer: who is at the other end, for messages.
        abort: raised to call off whatever is under way.
    """

    def __init__(self, channel: Channel, peer: str, abort: AbortSignal | None = None) -> None:
        self.peer = peer
        self._channel = channel
        self._abort = abort
        self._last_number = 0

    def next_number(self) -> int:
        """A number for a request. They only go up, which tells stale answers from due ones."""
        self._last_number += 1
        return self._last_number

    def send(self, request: Request, timeout: float) -> None:
        """Send a request."""
        packet = memoryview(pack_message(request, request.token))
        self._channel.send([packet], Deadline(timeout))

    def receive(self, views: Sequence[memoryview], deadline: Deadline) -> None:
        """Fill the views with what arrives next."""
        self._channel.receive(views, deadline, self._abort)

    def await_header(self, token: bytes, request: int, deadline: Deadline) -> Header:
        """The header of the packet that answers a request, past leftovers of earlier downloads.

        Raises:
            ProtocolError: the packet answers a request that is not due.
        """
        data = bytearray(HEADER_BYTES)
        while True:
            self.receive([memoryview(data)], deadline)
            header = Header.unpack(data, self.peer)
            if header.request == request and header.token == token:
                return header
            if header.request >= request:
                raise ProtocolError(f"{self.peer} answered a request that was not due")
            self._discard(header.length, deadline)

    def _discard(self, length: int, deadline: Deadline) -> None:
        scratch = Scratch()
        while length:
            view = scratch.take(min(length, 1 << 20))
            self.receive([view], deadline)
            length -= len(view)

    def read_message(self, header: Header, deadline: Deadline) -> Reply:
        """The message behind a header.

        Raises:
            RefusedError: it says no.
            ProtocolError: it is none, or cannot be read.
            IntegrityError: it does not match its digest.
        """
        if header.kind == FRAME or header.length > MAX_HEADER_BYTES:
            raise ProtocolError(f"{self.peer} sent {header.length} bytes where a message was due")
        payload = bytearray(header.length)
        self.receive([memoryview(payload)], deadline)
        if digest_of([payload]) != header.digest:
            raise IntegrityError(f"a message from {self.peer} does not match its digest")
        reply = decode_reply(bytes(payload), self.peer)
        if isinstance(reply, Refused):
            raise RefusedError(f"{self.peer} refused: {reply.reason}")
        return reply


class RemoteSource:
    """A ref offered by a receiver's peer, as a source to be read once from front to back.

    Requests for what comes next are already under way while a range is being read; the channel
    holds the sender back, so this side needs no memory for them.

    Args:
        receiver: where to fetch.
        token: the ref.
        settings: sizes, window and timeout.

    Attributes:
        layout: as the sender told it.
        bytes: bytes of body received so far.
        requests: fetch requests made so far.
        chunks: frames received so far.

    Raises:
        StreamingError: the sender refused, fell silent, or is gone.
    """

    def __init__(self, receiver: Receiver, token: bytes, settings: StreamSettings) -> None:
        self.bytes = self.requests = self.chunks = 0
        self._ended: float | None = None
        self._receiver = receiver
        self._token = token
        self._settings = settings
        self._began = time.monotonic()
        self._fetches: deque[Fetch] = deque()
        self._requested = 0
        self._cursor = 0
        self._deadline = Deadline(settings.request_timeout)
        self.layout = self._open()

    @property
    def peer(self) -> str:
        """Who offers the ref."""
        return self._receiver.peer

    @property
    def cost(self) -> Transfer:
        """What the download has cost so far, or in all once it is closed."""
        seconds = (self._ended or time.monotonic()) - self._began
        return Transfer(self.bytes, self.requests, self.chunks, seconds=seconds)

    def receive(self, start: int, stop: int, into: Sequence[memoryview]) -> None:
        """Receive the bytes ``[start, stop)`` into views that are together as long.

        Args:
            start: where the last call stopped, 0 at first.
            stop: a multiple of the frame size, or the end of the body.
            into: writable views.

        Raises:
            IntegrityError: a frame does not match its digest.
            StreamingError: the sender refused, fell silent, is gone or broke the protocol.
        """
        if start != self._cursor:
            raise ValueError(f"a download goes on at byte {self._cursor}, not at {start}")
        left = list(into)
        while self._cursor < stop:
            self._request_ahead()
            fetch = self._fetches[0]
            length = min(self._settings.frame_size, fetch.stop - self._cursor)
            frame, left = split(left, length)
            self._receive_frame(fetch, self._cursor, length, frame)
            self._cursor += length
            if self._cursor == fetch.stop:
                self._fetches.popleft()
                self._deadline = Deadline(self._settings.request_timeout)

    def views(self, start: int, stop: int, scratch: Scratch) -> list[memoryview]:
        """The next bytes, received into ``scratch``: see :meth:`receive`."""
        view = scratch.take(stop - start)
        self.receive(start, stop, [view])
        return [view]

    def receive_whole(self) -> memoryview:
        """Receive the model as one serialised message, and return its body: chunk size 0."""
        if not self.layout.nbytes:
            return memoryview(b"")  # a range of no bytes cannot be asked for
        head = len(self.layout.plain_header)
        message = memoryview(bytearray(head + self.layout.nbytes))
        fetch = self._fetch(0, self.layout.nbytes, chunk_size=0)
        self._receive_frame(fetch, 0, len(message), [message])
        self.bytes = self.layout.nbytes  # the header is not part of the body
        self._cursor = self.layout.nbytes
        return message[head:]

    def close(self, failure: str = "") -> None:
        """Tell the sender that this receiver is done, and end the clock.

        Args:
            failure: why the model is of no use; empty if all is well.
        """
        self._tell(ok=not failure, reason=failure)
        self._ended = time.monotonic()

    def pause(self) -> None:
        """Leave the ref without a verdict, so that it can be read again from the front."""
        self._tell(ok=False, reason="")

    def _tell(self, *, ok: bool, reason: str) -> None:
        close = Close(self._token, self._receiver.next_number(), ok, reason)
        self._receiver.send(close, self._settings.request_timeout)

    def _open(self) -> Layout:
        request = Open(self._token, self._receiver.next_number())
        self._receiver.send(request, self._settings.request_timeout)
        header = self._receiver.await_header(self._token, request.request, self._deadline)
        reply = self._receiver.read_message(header, self._deadline)
        if not isinstance(reply, Opened):
            raise ProtocolError(f"{self.peer} answered the opening of a ref with something else")
        try:
            layout, _ = parse_header(reply.layout, self.peer)
        except LayoutError as error:
            raise ProtocolError(str(error)) from error
        return layout

    def _request_ahead(self) -> None:
        size = self._settings.bytes_a_request
        while len(self._fetches) < self._settings.window and self._requested < self.layout.nbytes:
            stop = min(self._requested + size, self.layout.nbytes)
            self._fetches.append(self._fetch(self._requested, stop, self._settings.frame_size))
            self._requested = stop

    def _fetch(self, start: int, stop: int, chunk_size: int) -> Fetch:
        number = self._receiver.next_number()
        fetch = Fetch(self._token, number, start, stop, chunk_size)
        self._receiver.send(fetch, self._settings.request_timeout)
        self.requests += 1
        return fetch

    def _receive_frame(
        self, fetch: Fetch, start: int, length: int, into: Sequence[memoryview]
    ) -> None:
        header = self._await_frame(fetch)
        if (header.start, header.length) != (start, length):
            raise ProtocolError(
                f"{self.peer} sent bytes {header.start} to {header.start + header.length} where "
                f"{start} to {start + length} were due"
            )
        self._fill(header, into)

    def _await_frame(self, fetch: Fetch) -> Header:
        header = self._receiver.await_header(self._token, fetch.request, self._deadline)
        if header.kind == MESSAGE:
            reply = self._receiver.read_message(header, self._deadline)
            raise ProtocolError(f"{self.peer} sent {type(reply).__name__} where a frame was due")
        return header

    def _fill(self, header: Header, views: Sequence[memoryview]) -> None:
        self._receiver.receive(views, self._deadline)
        if digest_of(views) != header.digest:
            raise IntegrityError(
                f"bytes {header.start} to {header.start + header.length} from {self.peer} "
                f"(tensor {self.layout.name_at(header.start)!r}) do not match their digest; "
                "run the job again"
            )
        self.bytes += header.length
        self.chunks += 1


def download(
    receiver: Receiver,
    token: bytes,
    settings: StreamSettings,
    sink_for: Callable[[Layout], SinkT],
) -> tuple[SinkT, Transfer]:
    """Copy a snapshot from the peer of a channel into a sink.

    Args:
        receiver: where to fetch.
        token: the ref.
        settings: sizes, window and timeout.
        sink_for: makes the sink, given the layout that the sender told.

    Returns:
        The sink, filled, and what it cost.

    Raises:
        StreamingError: the sender refused, fell silent, broke the protocol or is gone; the sender
            is told if it can be.
        FlstreamError: the sink did not take the bytes.
    """
    remote = RemoteSource(receiver, token, settings)
    try:
        sink = sink_for(remote.layout)
        if sink.layout != remote.layout:
            # The same range would mean other tensors on either side.
            difference = remote.layout.difference(sink.layout)
            raise LayoutError(f"what {remote.peer} offers does not fit the sink: {difference}")
        if settings.chunk_size == 0:
            _copy(remote.receive_whole(), sink)
        else:
            for start, stop in remote.layout.ranges(settings.frame_size):
                remote.receive(start, stop, sink.views(start, stop))
                sink.commit(start, stop)
    except FlstreamError as error:
        # The first error is the one to report, whether or not the sender can still hear of it.
        with suppress(StreamingError):
            remote.close(failure=str(error))
        raise
    remote.close()
    return sink, remote.cost


def _copy(body: memoryview, sink: Sink) -> None:
    for start, stop in sink.layout.ranges(_COPY_STEP):
        offset = start
        for view in sink.views(start, stop):
            view[:] = body[offset : offset + len(view)]
            offset += len(view)
        sink.commit(start, stop)
