"""Sender's side of one connection: a thread that answers its receiver's requests.

The thread reads a request, answers it, and looks for the next one between two frames. It blocks on
nobody else: a receiver that is slow or gone holds up itself alone.
"""

from __future__ import annotations

import select
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import xxhash

from flstream.errors import (
    BrokenStreamError,
    ChannelClosedError,
    FlstreamError,
    ProtocolError,
    RefusedError,
)
from flstream.model.layout import ALIGNMENT
from flstream.model.source import Scratch, Source, change_of, in_place, views_of
from flstream.streaming import wire
from flstream.streaming.coding import HEAD, Coder
from flstream.streaming.direct import place_of
from flstream.streaming.refs import Delivery, Ref, block_length
from flstream.streaming.settings import Limits
from flstream.text import quotable
from flstream.transport.channel import Channel, Deadline, advance

if TYPE_CHECKING:
    from flstream.streaming.service import DownloadService

NOT_ON_OFFER = "this ref is not on offer, or has settled"

SILENT_SECONDS = 10.0
"""Seconds without a sign of life after which a channel that may die in silence is given up."""

# Bytes that are digested and handed to the kernel at a time: they stay in the processor's cache.
_PIECE_BYTES = 1 << 20
# A piece made of more tensors than this is gathered first: handing views to the kernel costs more.
_MOST_VIEWS = 128
# Seconds after which it is looked again whether a receiver has taken anything.
_LOOK_SECONDS = 0.25
# A request, or a frame of fewer bytes, is mostly work of the interpreter, whose lock all threads
# share: one that does request after request takes it back before another wakes. So it rests after
# each for as long as that took, while another connection sends frames.
_SHORT_BYTES = 64 << 10
_LEAST_REST_SECONDS = 1e-4
# Bytes of the longest frame that is encoded.
_MOST_ENCODED_BYTES = 8 << 20
# Filler for the rest of a frame whose ref has settled.
_ZEROS = memoryview(bytes(_PIECE_BYTES))


class Connection(threading.Thread):
    """Thread that serves the channel of one receiver."""

    def __init__(
        self, channel: Channel, receiver: str, service: DownloadService, limits: Limits
    ) -> None:
        super().__init__(name=f"sends to {receiver}", daemon=True)
        self.channel = channel
        self.receiver = receiver
        self._service = service
        self._limits = limits
        self._packets = wire.PacketReader(channel, receiver)
        self._scratch = Scratch()
        # Messages, headers and digests that are to be sent before what comes next.
        self._waiting: list[memoryview] = []
        # The request that frames are sent for, and the next frame of it to be made.
        self.fetch: wire.Fetch | None = None
        self._frames: Iterator[tuple[int, int]] = iter(())
        self._encoder: Coder | None = None
        self._next: wire.Request | None = None  # what came while something took long
        self._delivery: Delivery | None = None  # for which the last frame was sent
        # Refs whose place this connection was told, and which it has not closed: what it read there
        # is sound only as long as they are on offer.
        self._placed: set[bytes] = set()

    def run(self) -> None:
        """Answer one request after another, until the channel ends."""
        reason = ""
        try:
            self._post(wire.Hello(wire.VERSION))
            while True:
                length, began = 0, time.thread_time()
                if self.fetch is None or self._next is not None or self._has_input():
                    self._take(self._request())
                else:
                    length = self._send_frame(self.fetch)
                if length < _SHORT_BYTES and self._service.is_sending_beside(self):
                    # Not to wait for anything, but to leave the interpreter's lock to the others.
                    time.sleep(max(time.thread_time() - began, _LEAST_REST_SECONDS))
        except (ChannelClosedError, ProtocolError) as error:
            reason = str(error)  # it is gone, or does not follow the protocol
        except BaseException as error:
            reason = f"the sender failed: {type(error).__name__}: {error}"
            raise
        finally:
            # Also after a defect or a lack of memory, so that the receiver sees the end of its
            # channel at once, instead of silence until its request times out.
            self.channel.close()
            self._service.ended(self, reason)

    # Receiving.

    def _has_input(self) -> bool:
        return self._packets.has_more or self.channel.wait(Deadline(0.0))

    def _request(self) -> wire.Request | wire.Hello:
        if self._next is not None:
            request, self._next = self._next, None
            return request
        header = self._packets.header(self._wait_for_input)
        if header.kind != wire.MESSAGE or header.length > wire.MAX_REQUEST_BYTES:
            raise BrokenStreamError(f"{self.receiver} sent {header.length} bytes, no request")
        payload = self._packets.message(header, wire.MAX_REQUEST_BYTES, self._wait_for_input)
        return wire.decode(wire.REQUESTS, payload, self.receiver)

    def _wait_for_input(self) -> None:
        silent = Deadline(SILENT_SECONDS if self.channel.beats else None)
        if not self.channel.wait(silent):
            raise ChannelClosedError(f"it gave no sign of life for {SILENT_SECONDS:g} s")

    def _take(self, message: wire.Request | wire.Hello) -> None:
        """Answer a request, the first of which is a greeting."""
        if isinstance(message, wire.Hello):
            wire.expect_version(message.version, self.receiver)
            self._packets.has_greeted = True
        elif not self._packets.has_greeted:
            raise BrokenStreamError(f"{self.receiver} did not greet")
        elif message.number:
            if not isinstance(message, wire.Find | wire.Ping):
                self.fetch, self._frames = None, iter(())  # one download at a time
            with self._refusing(message):
                self._answer(message)
        elif not isinstance(message, wire.Ping):
            raise BrokenStreamError(f"{self.receiver} sent a request with the number of a beat")

    def _answer(self, request: wire.Request) -> None:
        if isinstance(request, wire.Find):
            tokens = self._service.find(self.receiver, request.specs)
            self._post(wire.Found(request.number, tokens))
            return
        ref = self._service.ref(request.token, self.receiver)
        if isinstance(request, wire.Close):
            self._close(request, ref)
            return
        source = None if ref is None else ref.source
        if ref is None or source is None:
            has_it = ref is not None and ref.deliveries[self.receiver].has_it
            # A receiver that it was not offered to does not learn whether the ref exists.
            if not (isinstance(request, wire.Ping) and has_it) or request.token in self._placed:
                raise RefusedError(NOT_ON_OFFER)
            self._post(wire.Pong(request.number))  # the answer to its close was lost
        else:
            ref.deliveries[self.receiver].active_at = time.monotonic()
            match request:
                case wire.Open():
                    self._open(request, ref, source)
                case wire.Fetch():
                    self._begin(request, ref, source)
                case wire.Ping():
                    if change := change_of(source):
                        raise RefusedError(change)
                    answering = self.fetch.number if self.fetch is not None else 0
                    self._post(wire.Pong(request.number, answering))

    def _open(self, request: wire.Open, ref: Ref, source: Source) -> None:
        layout, digests, block = source.layout, b"", 0
        place, descriptors = None, list[int]()
        encoder = ref.options.get("encoder")  # which is for fewer bytes, so frames are sent
        if request.digests:
            digest_of = partial(self._digest_of_block, ref)
            digests = ref.block_digests(digest_of, lambda: self._attend(request))
            block = block_length(layout.nbytes) if digests else 0
        if request.direct and self.channel.direct and layout.nbytes > request.eager and not encoder:
            place, descriptors = place_of(source)
        if place is not None:
            self._placed.add(request.token)
        is_eager = place is None and not digests and 0 < layout.nbytes <= request.eager
        size = min(request.chunk_size, ref.max_chunk_size or request.chunk_size)
        header, most = layout.plain_header[8:], ref.max_chunk_size
        decoded = ref.options.get("decoded")
        plain = b"" if decoded is None else decoded.plain_header[8:]
        self._post(
            wire.Opened(request.number, header, most, ref.order, block, digests, place, plain),
            descriptors,
        )
        if is_eager and (size or not most):
            whole = [(0, layout.nbytes)]
            self._begin(wire.Fetch(ref.token, request.number, whole, size), ref, source)

    def _digest_of_block(self, ref: Ref, start: int, stop: int) -> int:
        with ref.deliveries[self.receiver].reading:
            return wire.digest_of(views_of(_source_of(ref), start, stop, self._scratch))

    def _attend(self, meanwhile: wire.Open) -> None:
        """Check during long work whether the receiver still waits, or has ended."""
        while self._has_input():
            request = self._request()
            if isinstance(request, wire.Ping):
                if request.number:
                    self._post(wire.Pong(request.number, meanwhile.number))
            elif not isinstance(request, wire.Hello):
                self._next = request
                raise RefusedError("another request took its place")

    def _begin(self, fetch: wire.Fetch, ref: Ref, source: Source) -> None:
        self._expect_sound(fetch, source.layout.nbytes, ref.max_chunk_size or wire.MAX_CHUNK_BYTES)
        ref.deliveries[self.receiver].requests += 1
        encoder_for = ref.options.get("encoder") if fetch.encoded else None
        self._encoder = None if encoder_for is None else encoder_for(fetch.base)
        self.fetch, self._frames = fetch, wire.cut(fetch.ranges, fetch.chunk_size)

    def _expect_sound(self, fetch: wire.Fetch, nbytes: int, most: int) -> None:
        """Refuse a request that has an error, for a body of ``nbytes``."""
        for start, stop in fetch.ranges:
            if not 0 <= start < stop <= nbytes:
                raise RefusedError(f"bytes {start} to {stop} are not a range of a body of {nbytes}")
        if fetch.chunk_size > most or (fetch.chunk_size == 0 and most < wire.MAX_CHUNK_BYTES):
            raise RefusedError(f"chunks of more than {most} bytes are not sent")
        if fetch.chunk_size < 0 or fetch.chunk_size % ALIGNMENT:
            raise RefusedError(f"a chunk size must be a multiple of {ALIGNMENT}")
        most = self._limits.scratch_bytes
        if fetch.chunk_size == 0 and any(stop - start > most for start, stop in fetch.ranges):
            raise RefusedError(
                f"more than {most} bytes are not put into one frame here (Limits.scratch_bytes)"
            )

    def _close(self, request: wire.Close, ref: Ref | None) -> None:
        flaw = NOT_ON_OFFER if request.ok else ""
        if ref is not None:
            change = None if ref.source is None else change_of(ref.source)
            # Another thread may be settling the ref: then this came too late to count. Or it was
            # fetched again, after a first success.
            is_late = ref.source is None and request.token in self._placed
            ref.receiver_done(self.receiver, change if request.ok else quotable(request.reason))
            flaw = change or ref.flaw_of(self.receiver) or ("it had settled" if is_late else "")
        if flaw and request.ok:
            raise RefusedError(flaw)
        self._placed.discard(request.token)
        self._post(wire.Closed(request.number))

    # Sending.

    @contextmanager
    def _refusing(self, request: wire.Request) -> Iterator[None]:
        """Refuse a request that fails, such as for a file that became shorter."""
        try:
            yield
        except (ChannelClosedError, ProtocolError):
            raise
        except Exception as error:
            reason = str(error)
            if not isinstance(error, FlstreamError):  # of a defect here, a traceback is of use
                traceback.print_exception(error)
                reason = f"what is on offer cannot be read: {type(error).__name__}: {error}"
            self._post(wire.Refused(request.number, reason))

    def _post(self, message: wire.Reply | wire.Hello, descriptors: Sequence[int] = ()) -> None:
        """Send a message, after all waiting bytes."""
        if descriptors:
            self._send()  # they go with the first byte of a call
        self._send(memoryview(wire.pack_message(message)), descriptors=descriptors)

    def _send(self, *data: memoryview, descriptors: Sequence[int] = ()) -> None:
        """Send waiting bytes, and then bytes that stay unchanged meanwhile."""
        self._waiting += data
        while self._waiting:
            count = self.channel.send_some(self._waiting, descriptors)
            if count:
                self._waiting, descriptors = advance(self._waiting, count), ()
            else:
                self._wait_for_room()

    def _send_in_place(self, ref: Ref, delivery: Delivery, start: int, stop: int) -> None:
        """Send waiting bytes, and then a range of a body in memory, while on offer."""
        while start < stop:
            waits = sum(map(len, self._waiting))
            with delivery.reading:
                source = ref.source
                views = None if source is None else in_place(source, start, stop)
                if views is not None:
                    count = self.channel.send_some([*self._waiting, *views])
            if views is None:  # its owner has the memory back: the receiver finds the frame damaged
                self._send(_ZEROS[: stop - start])
                return
            del views, source  # not to keep a tensor alive while the receiver rests
            self._waiting = advance(self._waiting, min(count, waits))
            start += max(count - waits, 0)
            if not count:
                self._wait_for_room()

    def _wait_for_room(self) -> None:
        """Wait until the receiver takes more, as long as it reports that it lives."""
        sign, since = None, time.monotonic()
        # There is room only once most of what waits was taken, which may take a slow one long.
        while not self.channel.wait(Deadline(_LOOK_SECONDS), events=select.POLLOUT):
            latest, now = (self.channel.untaken, self.channel.unread), time.monotonic()
            if latest != sign:
                sign, since = latest, now
                if self._delivery is not None:
                    self._delivery.active_at = now
            elif self.channel.beats and now - since > SILENT_SECONDS:
                raise ChannelClosedError(f"it gave no sign of life for {SILENT_SECONDS:g} s")

    def _send_frame(self, fetch: wire.Fetch) -> int:
        """Send the request's next frame, if any; return its length in bytes."""
        place = next(self._frames, None)
        if place is None:
            self._send()
            self.fetch = None
            return 0
        with self._refusing(fetch):
            if (ref := self._service.ref(fetch.token, self.receiver)) is None:
                raise RefusedError(NOT_ON_OFFER)
            delivery = self._delivery = ref.deliveries[self.receiver]
            length = self._send_range(fetch, ref, delivery, *place)
            delivery.chunks += 1
            delivery.bytes += length
            delivery.active_at = time.monotonic()
            return length
        self.fetch = None  # it was refused
        return 0

    def _send_range(
        self, fetch: wire.Fetch, ref: Ref, delivery: Delivery, start: int, stop: int
    ) -> int:
        """Send a frame for a range, and return the length of its payload."""
        whole = None
        header = wire.Header(wire.FRAME, fetch.number, start, stop - start)
        if fetch.chunk_size == 0:
            whole = memoryview(bytearray(stop - start))
            with delivery.reading:
                _source_of(ref).read(start, stop, whole)
        elif self._encoder is not None and stop - start <= _MOST_ENCODED_BYTES:
            whole = self._encoded(self._encoder, ref, delivery, start, stop)
            if whole is not None:
                header = wire.Header(wire.ENCODED, fetch.number, start, len(whole))
        if whole is not None:
            self._waiting.append(memoryview(header.pack()))
            self._send(whole)
            self._waiting.append(memoryview(wire.pack_digest(wire.digest_of([whole]))))
            return len(whole)
        digest = xxhash.xxh3_64()
        for begin, end in wire.cut([(start, stop)], _PIECE_BYTES):
            try:
                piece = self._piece(ref, delivery, begin, end, digest)
            except Exception:
                if begin > start:  # a frame that has begun is to have an end, if a damaged one
                    for first, last in wire.cut([(begin, stop)], _PIECE_BYTES):
                        self._send(_ZEROS[: last - first])
                    self._waiting.append(memoryview(wire.pack_digest(~digest.intdigest() % 2**64)))
                raise
            if begin == start:
                self._waiting.append(memoryview(header.pack()))
            if piece is None:
                self._send_in_place(ref, delivery, begin, end)
            else:
                self._send(piece)
        self._waiting.append(memoryview(wire.pack_digest(digest.intdigest())))
        return stop - start

    def _piece(
        self, ref: Ref, delivery: Delivery, start: int, stop: int, digest: xxhash.xxh3_64
    ) -> memoryview | None:
        """Digest a piece of the body; return its bytes, or None for bytes in place."""
        with delivery.reading:
            source = _source_of(ref)
            views = in_place(source, start, stop)
            for view in views or ():
                digest.update(view)
            if views is not None and len(views) <= _MOST_VIEWS:
                return None
            data = self._scratch.take(stop - start)
            source.read(start, stop, data)
            delivery.active_at = time.monotonic()  # to read may have taken long
        if views is None:
            digest.update(data)
        return data

    def _encoded(
        self, encoder: Coder, ref: Ref, delivery: Delivery, start: int, stop: int
    ) -> memoryview | None:
        """Return an encoded chunk; None where the code is no smaller."""
        with delivery.reading:
            views = views_of(_source_of(ref), start, stop, self._scratch)
            data = views[0] if len(views) == 1 else memoryview(b"".join(views))
            digest = wire.digest_of([data])
            encoded = encoder.encode(data, start, stop)
        if len(encoded) + HEAD.size >= stop - start:
            return None
        return memoryview(HEAD.pack(digest, bool(encoder.base)) + encoded)


def _source_of(ref: Ref) -> Source:
    source = ref.source
    if source is None:
        raise RefusedError("the ref settled before this was sent")
    return source
