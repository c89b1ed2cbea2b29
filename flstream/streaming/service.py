"""The download service: offers snapshots and serves ranges of them to declared receivers.

One thread serves every channel. It never blocks on one of them: each gets a chunk in its turn
whenever it can take more, so that a slow or dead receiver holds up nobody.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Self

import msgspec

from flstream.errors import ChannelClosedError, FlstreamError, ProtocolError
from flstream.model.body import Scratch, Source
from flstream.model.layout import ALIGNMENT
from flstream.streaming.refs import Ref
from flstream.streaming.wire import (
    FRAME,
    HEADER_BYTES,
    MAX_REQUEST_BYTES,
    MESSAGE,
    Close,
    Fetch,
    Header,
    Open,
    Opened,
    Refused,
    Request,
    decode_request,
    digest_of,
    pack_message,
)
from flstream.transport.channel import Channel, Signal
from flstream.transport.views import advance

# Requests one receiver may have waiting. A window is smaller by far; this bounds a hostile one.
_MAX_WAITING = 256
# A chunk made of more tensors than this is gathered into one buffer first: beyond it, handing
# views to the kernel costs more than copying the bytes.
_MAX_GATHER = 128


class DownloadService:
    """Serves refs to the receivers at the other ends of attached channels.

    Use it as a context manager: leaving it aborts what is still on offer and ends its thread.

    Args:
        name: the name of its thread.
    """

    def __init__(self, name: str = "download-service") -> None:
        self._refs: dict[bytes, Ref] = {}
        self._wake = Signal()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._attaching: deque[_Connection] = deque()
        self._spare: list[Scratch] = []
        self._lost: dict[str, str] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def offer(self, source: Source, receivers: Iterable[str]) -> Ref:
        """Offer a snapshot to receivers, who need the returned ref's token to fetch it.

        The source must not change before the ref settles. Reading costs nothing here: its bytes
        are taken when they are asked for.

        Args:
            source: the snapshot.
            receivers: names under which their channels were attached.
        """
        ref = Ref.issue(source, receivers, on_settled=self._forget)
        self._refs[ref.token] = ref
        # A receiver whose channel is gone already will never say that it is done. Its loss is noted
        # before the open refs are told of it, so that a ref made meanwhile hears of it here.
        for name in ref.deliveries:
            if name in self._lost:
                ref.receiver_done(name, self._lost[name])
        if self._closing:
            ref.abort("the service was closed")
        return ref

    def attach(self, channel: Channel, receiver: str) -> None:
        """Serve a channel. Whoever holds its other end is taken to be ``receiver``."""
        self._lost.pop(receiver, None)
        self._attaching.append(_Connection(channel, receiver, self._refs, self._spare))
        self._wake.set()

    def close(self) -> None:
        """Abort every ref on offer, close every channel and end the thread."""
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        self._thread.join()
        # Not by the thread: it may see the flag, and be gone, before it is woken.
        self._wake.close()
        for connection in self._attaching:
            connection.channel.close()
        for ref in list(self._refs.values()):
            ref.abort("the service was closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forget(self, ref: Ref) -> None:
        self._refs.pop(ref.token, None)

    def _serve(self) -> None:
        with self._selector:
            try:
                while not self._closing:
                    for key, events in self._selector.select():
                        if key.data is None:
                            self._take_in()
                        else:
                            self._advance(key.data, events)
            finally:
                # Also after a defect, or for want of memory: receivers then see the end of their
                # channels at once, instead of silence until their requests time out.
                for key in list(self._selector.get_map().values()):
                    if key.data is not None:
                        self._drop(key.data, "the service was closed")

    def _take_in(self) -> None:
        self._wake.clear()
        while self._attaching:
            connection = self._attaching.popleft()
            self._selector.register(connection.channel, selectors.EVENT_READ, connection)

    def _advance(self, connection: _Connection, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                connection.read()
            if events & selectors.EVENT_WRITE or connection.has_output:
                connection.write()
        except ChannelClosedError as error:
            self._drop(connection, str(error))
            return
        except ProtocolError as error:
            # Its stream can no longer be cut into packets, so there is no one to answer.
            self._drop(connection, str(error))
            return
        wanted = selectors.EVENT_READ | (connection.has_output and selectors.EVENT_WRITE)
        if self._selector.get_key(connection.channel).events != wanted:
            self._selector.modify(connection.channel, wanted, connection)

    def _drop(self, connection: _Connection, reason: str) -> None:
        self._selector.unregister(connection.channel)
        connection.channel.close()
        self._lost[connection.receiver] = reason
        for ref in list(self._refs.values()):
            if connection.receiver in ref.deliveries:
                ref.receiver_done(connection.receiver, reason)


class _Connection:
    """One receiver's channel: the requests that wait, and the packet that is on its way."""

    def __init__(
        self,
        channel: Channel,
        receiver: str,
        refs: dict[bytes, Ref],
        spare: list[Scratch],
    ) -> None:
        self.channel = channel
        self.receiver = receiver
        self._refs = refs
        self._input = bytearray(HEADER_BYTES + MAX_REQUEST_BYTES)
        self._filled = 0
        self._messages: deque[bytes] = deque()
        self._fetches: deque[Fetch] = deque()
        self._packet: list[memoryview] = []
        # What the packet lies in, if its source had to read it. Most packets go in one go, so a
        # few buffers, handed on when a packet is sent, serve any number of channels.
        self._scratch: Scratch | None = None
        self._spare = spare

    @property
    def has_output(self) -> bool:
        """Whether there is anything to send."""
        return bool(self._packet or self._messages or self._fetches)

    def read(self) -> None:
        """Take in what has arrived, and answer every whole message in it."""
        self._filled += self.channel.receive_some([memoryview(self._input)[self._filled :]])
        done = 0
        while self._filled - done >= HEADER_BYTES:
            body = done + HEADER_BYTES
            header = Header.unpack(self._input[done:body], self.receiver)
            if header.kind != MESSAGE or header.length > MAX_REQUEST_BYTES:
                raise ProtocolError(
                    f"{self.receiver} sent a packet of {header.length} bytes where requests of "
                    f"at most {MAX_REQUEST_BYTES} are taken"
                )
            if self._filled < body + header.length:
                break
            payload = bytes(self._input[body : body + header.length])
            if digest_of([payload]) != header.digest:
                raise ProtocolError(
                    f"{self.receiver} sent a message that does not match its digest"
                )
            self._answer(decode_request(payload, self.receiver))
            done = body + header.length
        self._input[: self._filled - done] = self._input[done : self._filled]
        self._filled -= done

    def _answer(self, request: Request) -> None:
        ref = self._refs.get(request.token)
        # Whether the ref exists is none of the business of one it was not offered to.
        if ref is None or self.receiver not in ref.deliveries or (source := ref.source) is None:
            if not isinstance(request, Close):
                self._refuse(request, "this ref is not on offer, or has settled")
            return
        match request:
            case Open():
                delivery = ref.deliveries[self.receiver]
                delivery.opened_at = delivery.opened_at or time.monotonic()
                opened = Opened(request.request, source.layout.plain_header[8:])
                self._messages.append(pack_message(opened, ref.token))
            case Fetch():
                flaw = _flaw(request, source.layout.nbytes)
                if flaw or len(self._fetches) >= _MAX_WAITING:
                    self._refuse(request, flaw or f"more than {_MAX_WAITING} requests are waiting")
                    return
                ref.deliveries[self.receiver].requests += 1
                self._fetches.append(request)
            case Close():
                # What it asked for and no longer wants need not be sent.
                self._fetches = deque(f for f in self._fetches if f.token != request.token)
                if request.ok or request.reason:
                    ref.receiver_done(self.receiver, None if request.ok else request.reason)

    def _refuse(self, request: Request, reason: str) -> None:
        self._messages.append(pack_message(Refused(request.request, reason), request.token))

    def write(self) -> None:
        """Send at most one chunk, so that the other channels get their turn."""
        if not self._packet:
            self._packet = self._next_packet()
        count = self.channel.send_some(self._packet)
        self._packet = advance(self._packet, count)
        # The kernel takes a chunk in pieces. Going on while it takes them saves a trip through
        # the selector for each.
        while self._packet and count:
            count = self.channel.send_some(self._packet)
            self._packet = advance(self._packet, count)
        if not self._packet and self._scratch is not None:
            self._spare.append(self._scratch)
            self._scratch = None

    def _next_packet(self) -> list[memoryview]:
        if self._messages:
            return [memoryview(self._messages.popleft())]
        while self._fetches:
            fetch = self._fetches[0]
            ref = self._refs.get(fetch.token)
            source = ref.source if ref else None
            if ref is None or source is None:
                self._fetches.popleft()
                self._refuse(fetch, "the ref settled before this was sent")
                return [memoryview(self._messages.popleft())]
            try:
                return self._next_frame(fetch, ref, source)
            except FlstreamError as error:
                self._fetches.popleft()
                self._refuse(fetch, str(error))
                return [memoryview(self._messages.popleft())]
        return []

    def _next_frame(self, fetch: Fetch, ref: Ref, source: Source) -> list[memoryview]:
        self._scratch = self._spare.pop() if self._spare else Scratch()
        views: list[memoryview]
        if fetch.chunk_size == 0:
            stop = fetch.stop
            body = source.views(fetch.start, stop, self._scratch)
            views = [memoryview(b"".join([source.layout.plain_header, *body]))]
        else:
            stop = min(fetch.start + fetch.chunk_size, fetch.stop)
            views = list(source.views(fetch.start, stop, self._scratch))
            if len(views) > _MAX_GATHER:
                views = [memoryview(b"".join(views))]
        length = sum(map(len, views))
        header = Header(
            FRAME, fetch.request, fetch.token, fetch.start, length, digest_of(views)
        ).pack()
        delivery = ref.deliveries[self.receiver]
        delivery.chunks += 1
        delivery.bytes += stop - fetch.start
        if stop == fetch.stop:
            self._fetches.popleft()
        else:
            self._fetches[0] = msgspec.structs.replace(fetch, start=stop)
        return [memoryview(header), *views]


def _flaw(fetch: Fetch, nbytes: int) -> str:
    """What is wrong with a request for a body of ``nbytes``, or an empty string."""
    if not 0 <= fetch.start < fetch.stop <= nbytes:
        return f"bytes {fetch.start} to {fetch.stop} are not a range of a body of {nbytes}"
    if fetch.chunk_size < 0 or fetch.chunk_size % ALIGNMENT or fetch.start % ALIGNMENT:
        return f"chunk size and start must be multiples of {ALIGNMENT}"
    if fetch.chunk_size == 0 and (fetch.start, fetch.stop) != (0, nbytes):
        return "a model serialised into one message can only be had whole"
    return ""
