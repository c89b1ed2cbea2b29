"""One receiver's channel, as the service serves it: requests in, packets out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import chain

import msgspec

from flstream.errors import FlstreamError, ProtocolError
from flstream.model.body import Scratch, Source
from flstream.model.layout import ALIGNMENT
from flstream.streaming.refs import Ref
from flstream.streaming.wire import (
    FRAME,
    HEADER_BYTES,
    MAGIC,
    MAX_CHUNK_BYTES,
    MAX_DIGEST_BYTES,
    MAX_DIGESTS,
    MAX_REQUEST_BYTES,
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
    Request,
    Waiting,
    decode_request,
    digest_of,
    pack_message,
)
from flstream.transport.channel import Channel
from flstream.transport.views import advance

# Requests one receiver may have waiting. A window is smaller by far; this bounds a hostile one.
_MAX_WAITING = 256
# Bytes without a request among them after which a receiver is taken to have none.
_MAX_JUNK = 16 << 20
# A chunk made of more tensors than this is gathered into one buffer first: beyond it, handing
# views to the kernel costs more than copying the bytes.
_MAX_GATHER = 128
# What a frame of a ref that has settled is filled up with.
_ZEROS = memoryview(bytes(64 << 10))


class Connection:
    """One receiver's channel: the requests that wait, and the packet that is on its way.

    Args:
        channel: what carries the packets.
        receiver: who is at its other end.
        refs: every ref on offer, by token.
        spare: buffers that no connection is using.
    """

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
        self._urgent: deque[Fetch] = deque()
        self._fetches: deque[Fetch] = deque()
        self._junk = 0
        self._packet: list[memoryview] = []
        self._packet_of: bytes | None = None
        self._begun = False
        # What the packet lies in, if its source had to read it. Most packets go in one go, so a
        # few buffers, handed on when a packet is sent, serve any number of channels.
        self._scratch: Scratch | None = None
        self._spare = spare

    @property
    def has_output(self) -> bool:
        """Whether there is anything to send."""
        return bool(self._packet or self._messages or self._urgent or self._fetches)

    @property
    def takes_input(self) -> bool:
        """Whether requests are read: not from one who asks without reading the answers."""
        return len(self._messages) < _MAX_WAITING

    def read(self) -> None:
        """Take in what has arrived, and answer every whole message in it."""
        self._filled += self.channel.receive_some([memoryview(self._input)[self._filled :]])
        done = 0
        while self._filled - done >= HEADER_BYTES:
            body = done + HEADER_BYTES
            header = Header.parse(memoryview(self._input)[done:body])
            if header is None or header.kind != MESSAGE or header.length > MAX_REQUEST_BYTES:
                done = self._pass_over(done)
                continue
            if self._filled < body + header.length:
                break
            payload = bytes(self._input[body : body + header.length])
            if digest_of([payload]) == header.digest:
                self._junk = 0
                self._answer(decode_request(payload, self.receiver))
            # A damaged request is as good as lost: the receiver will ask what became of it.
            done = body + header.length
        self._input[: self._filled - done] = self._input[done : self._filled]
        self._filled -= done

    def _pass_over(self, done: int) -> int:
        """Where the next packet may begin, after bytes that are none."""
        found = self._input.find(MAGIC, done + 1, self._filled)
        following = found if found >= 0 else self._filled - len(MAGIC) + 1
        self._junk += following - done
        if self._junk > _MAX_JUNK:
            raise ProtocolError(f"{self.receiver} sent {self._junk} bytes that are no request")
        return following

    def _answer(self, request: Request) -> None:
        if isinstance(request, Close):
            self._close(request)
            return
        ref = self._refs.get(request.token)
        # Whether the ref exists is none of the business of one it was not offered to.
        if ref is None or self.receiver not in ref.deliveries or (source := ref.source) is None:
            self._refuse(request, "this ref is not on offer, or has settled")
            return
        match request:
            case Open():
                self._send(Opened(request.request, source.layout.plain_header[8:]), ref.token)
            case Probe():
                waiting = [each.request for each in self._waiting() if each.token == ref.token]
                self._send(Waiting(request.request, waiting), ref.token)
            case Digest():
                flaw = _flaw(request, source.layout.nbytes)
                if flaw:
                    self._refuse(request, flaw)
                    return
                try:
                    digests = self._digests(request, source)
                except FlstreamError as error:  # such as a file that became shorter
                    self._refuse(request, str(error))
                    return
                self._send(Digested(request.request, digests), ref.token)
            case Fetch():
                flaw = _flaw(request, source.layout.nbytes)
                if flaw or len(self._fetches) + len(self._urgent) >= _MAX_WAITING:
                    self._refuse(request, flaw or f"more than {_MAX_WAITING} requests are waiting")
                    return
                ref.deliveries[self.receiver].requests += 1
                (self._urgent if request.urgent else self._fetches).append(request)

    def _digests(self, request: Digest, source: Source) -> bytes:
        scratch, digests = Scratch(), []
        for start in range(request.start, request.stop, request.chunk_size):
            stop = min(start + request.chunk_size, request.stop)
            digests.append(digest_of(source.views(start, stop, scratch)))
        return b"".join(digest.to_bytes(8, "little") for digest in digests)

    def _close(self, request: Close) -> None:
        # What it asked for and no longer wants need not be sent.
        for queue in (self._urgent, self._fetches):
            wanted = [each for each in queue if each.token != request.token]
            queue.clear()
            queue.extend(wanted)
        ref = self._refs.get(request.token)
        if ref is not None and self.receiver in ref.deliveries:
            ref.receiver_done(self.receiver, None if request.ok else request.reason)
        # Also for a ref that is gone: this may be said again because the answer was lost.
        self._send(Closed(request.request), request.token)

    def _waiting(self) -> Iterable[Fetch]:
        return chain(self._urgent, self._fetches)

    def _refuse(self, request: Request, reason: str) -> None:
        self._send(Refused(request.request, reason), request.token)

    def _send(self, reply: Reply, token: bytes) -> None:
        self._messages.append(pack_message(reply, token))

    def write(self) -> None:
        """Send at most one chunk, so that the other channels get their turn."""
        if not self._packet:
            self._packet = self._next_packet()
            self._begun = False
        count = self.channel.send_some(self._packet)
        self._begun = self._begun or count > 0
        self._packet = advance(self._packet, count)
        # The kernel takes a chunk in pieces. Going on while it takes them saves a trip through
        # the selector for each.
        while self._packet and count:
            count = self.channel.send_some(self._packet)
            self._packet = advance(self._packet, count)
        if not self._packet and self._scratch is not None:
            self._spare.append(self._scratch)
            self._scratch = None

    def let_go(self) -> None:
        """Keep nothing of a ref that has settled, however slowly its frame is taken."""
        if not self._packet or self._packet_of is None or self._packet_of in self._refs:
            return
        # The receiver finds the frame damaged, asks for it again, and is refused.
        left = sum(map(len, self._packet)) if self._begun else 0
        whole, rest = divmod(left, len(_ZEROS))
        self._packet = [*[_ZEROS] * whole, *([_ZEROS[:rest]] if rest else [])]
        self._packet_of = None

    def _next_packet(self) -> list[memoryview]:
        self._packet_of = None
        while not self._messages and (queue := self._urgent or self._fetches):
            fetch = queue[0]
            ref = self._refs.get(fetch.token)
            source = ref.source if ref else None
            if ref is None or source is None:
                queue.popleft()
                self._refuse(fetch, "the ref settled before this was sent")
                continue
            try:
                return self._next_frame(queue, ref, source)
            except FlstreamError as error:
                queue.popleft()
                self._refuse(fetch, str(error))
        return [memoryview(self._messages.popleft())] if self._messages else []

    def _next_frame(self, queue: deque[Fetch], ref: Ref, source: Source) -> list[memoryview]:
        fetch = queue[0]
        if self._scratch is None:
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
            queue.popleft()
        else:
            queue[0] = msgspec.structs.replace(fetch, start=stop)
        self._packet_of = fetch.token
        return [memoryview(header), *views]


def _flaw(request: Fetch | Digest, nbytes: int) -> str:
    """What is wrong with a request for a body of ``nbytes``, or an empty string."""
    if not 0 <= request.start < request.stop <= nbytes:
        return f"bytes {request.start} to {request.stop} are not a range of a body of {nbytes}"
    if request.chunk_size > MAX_CHUNK_BYTES:
        return f"chunks of more than {MAX_CHUNK_BYTES} bytes are not sent"
    if request.chunk_size < 0 or request.chunk_size % ALIGNMENT or request.start % ALIGNMENT:
        return f"chunk size and start must be multiples of {ALIGNMENT}"
    if isinstance(request, Digest):
        length = request.stop - request.start
        if length > MAX_DIGEST_BYTES or length > MAX_DIGESTS * request.chunk_size:
            return f"the digests of {length} bytes are too many for one answer"
        return ""
    if request.chunk_size == 0 and (request.start, request.stop) != (0, nbytes):
        return "a model serialised into one message can only be had whole"
    return ""
