"""The service's side of one receiver's channel: requests in, packets out."""

from __future__ import annotations

import time
from concurrent.futures import Executor
from contextlib import suppress

from flstream.errors import BrokenStreamError, FlstreamError
from flstream.model.digests import body_digest
from flstream.model.layout import ALIGNMENT
from flstream.model.source import Scratch, Source, change_of
from flstream.streaming import wire
from flstream.streaming.digesting import Digesting
from flstream.streaming.frames import Demand
from flstream.streaming.limits import DEFAULT_LIMITS, Limits
from flstream.streaming.offers import NOT_ON_OFFER, Offers
from flstream.streaming.opening import MOST_EAGER_BYTES
from flstream.streaming.send_queue import SendQueue
from flstream.text import quotable
from flstream.transport.channel import Channel

# Bytes that are read at a time: most requests are short.
_READ_BYTES = 64 << 10


class Connection:
    """The service's side of one receiver's channel.

    Args:
        channel: Channel that carries the packets.
        receiver: Name of the receiver.
        offers: What is on offer.
        scratch: Buffer that all connections of a service share.
        limits: What the receiver may cause.
        threads: Digest what is sent next, beside the thread that sends.

    Attributes:
        channel: As given.
        receiver: As given.
        instance: What the receiver calls itself, alike on all its connections; None before it
            greets.
        active_at: Time at which it last sent anything.
        send_queue: Messages and chunks that the receiver is still to be sent.
    """

    def __init__(
        self,
        channel: Channel,
        receiver: str,
        offers: Offers,
        scratch: Scratch,
        limits: Limits = DEFAULT_LIMITS,
        threads: Executor | None = None,
    ) -> None:
        self.channel = channel
        self.receiver = receiver
        self.send_queue = SendQueue(
            channel, receiver, offers.refs, scratch, limits.hashed_bytes, threads
        )
        self._offers = offers
        self._refs = offers.refs
        self._scratch = scratch
        self.instance: bytes | None = None
        self.active_at = time.monotonic()
        self._input = bytearray()
        self._limits = limits
        self._digesting: Digesting | None = None
        self._has_opened_part = False
        # Whether the bytes that were read may begin with a whole request.
        self._has_request = False

    @property
    def takes_input(self) -> bool:
        """Whether requests are read: not from a receiver that asks without reading the answers."""
        return not self._has_request and self._may_answer

    @property
    def is_busy(self) -> bool:
        """Whether there is a request that can be answered now."""
        return self._digesting is not None or (self._has_request and self._may_answer)

    @property
    def _may_answer(self) -> bool:
        queue, limits = self.send_queue, self._limits
        return (
            queue.messages < limits.queued_messages
            and queue.message_bytes < limits.queued_bytes
            and self._digesting is None
        )

    def greet(self) -> None:
        """Send the greeting, which comes before all else."""
        self.send_queue.post(
            wire.pack_message(wire.Hello(wire.VERSION, capabilities=list(wire.CAPABILITIES)))
        )

    def read(self) -> None:
        """Receive what has arrived."""
        most = wire.HEADER_BYTES + wire.MAX_REQUEST_BYTES - len(self._input)
        room = self._scratch.take(min(most, _READ_BYTES))
        self._input += room[: self.channel.receive_some([room])]
        self._has_request = True
        self.active_at = time.monotonic()

    def answer_some(self) -> None:
        """Answer the requests that have arrived, as far as the receiver's share of a turn goes.

        Raises:
            ProtocolError: What has arrived is no request.
        """
        if self._digesting is not None:
            self._digest_some()
        if not self._has_request:
            return
        self._has_request = False
        done = looked_at = 0
        while len(self._input) - done >= wire.HEADER_BYTES:
            if not self._may_answer or looked_at == self._limits.answered_packets:
                self._has_request = True
                break
            looked_at += 1
            body = done + wire.HEADER_BYTES
            header = wire.Header.parse(self._input[done:body], self.receiver)
            if header.kind != wire.MESSAGE or header.length > wire.MAX_REQUEST_BYTES:
                raise BrokenStreamError(f"{self.receiver} sent {header.length} bytes, no request")
            if len(self._input) < body + header.length:
                break
            payload = bytes(self._input[body : body + header.length])
            if wire.digest_of([payload]) != header.digest:
                raise BrokenStreamError(f"a request of {self.receiver} does not match its digest")
            self._take(wire.decode_request(payload, self.receiver))
            done = body + header.length
            if self._has_opened_part:  # which takes as long as many other requests
                self._has_opened_part, self._has_request = False, True
                break
        del self._input[:done]

    def _take(self, message: wire.Request | wire.Hello) -> None:
        """Answer a request, the first of which is a greeting."""
        if isinstance(message, wire.Hello):
            wire.expect_version(message.version, self.receiver)
            self.instance = message.instance
        elif self.instance is None:
            raise BrokenStreamError(f"{self.receiver} did not greet")
        elif message.request:
            self._answer(message)
        elif not isinstance(message, wire.Ping):
            raise BrokenStreamError(f"{self.receiver} sent a request with the number of a beat")

    def _answer(self, request: wire.Request) -> None:
        if isinstance(request, wire.Close):
            self._close(request)
            return
        ref = self._refs.get(request.token)
        if ref is None and isinstance(request, wire.Open) and request.part is not None:
            self._has_opened_part = True
            try:
                ref = self._offers.open_part(self.receiver, request.token, request.part)
            except FlstreamError as error:
                self._refuse(request, str(error))
                return
        # A receiver that it was not offered to does not learn whether the ref exists.
        if ref is None or self.receiver not in ref.deliveries or (source := ref.source) is None:
            if isinstance(request, wire.Ping) and self._has(request.token):
                self._pong(request)  # it repeats that it closed, because the answer was lost
            else:
                self._refuse(request, NOT_ON_OFFER)
            return
        delivery = ref.deliveries[self.receiver]
        delivery.active_at = time.monotonic()
        match request:
            case wire.Open():
                nbytes, most = source.layout.nbytes, ref.max_chunk_size
                header = source.layout.plain_header[8:]
                size = ref.chunk_size(request.chunk_size)
                is_eager = 0 < nbytes <= request.eager and bool(size or not most)
                same = is_eager and _is(source, request.have)
                opened = wire.Opened(request.request, header, most, order=ref.order, same=same)
                self._send(opened, ref.token)
                if is_eager and not same:
                    self._answer(wire.Fetch(ref.token, request.request, 0, nbytes, size))
            case wire.Ping():
                change = change_of(source)
                if change is not None:
                    self._refuse(request, change)
                    return
                delivery.is_confirmed = not self.send_queue.of(ref.token)
                self._pong(request)
            case wire.Digest():
                self._digest(request, source)
            case wire.Fetch():
                most = ref.max_chunk_size or wire.MAX_CHUNK_BYTES
                flaw = _flaw(request, source.layout.nbytes, most) or self._excess(request, source)
                if flaw or self.send_queue.demands >= wire.MAX_REQUESTS:
                    self._refuse(
                        request, flaw or f"more than {wire.MAX_REQUESTS} requests are waiting"
                    )
                    return
                delivery.requests += 1
                delivery.is_confirmed = False
                number, start, stop = request.request, request.start, request.stop
                encoder = ref.options.get("encoder") if request.encoded else None
                made = None if encoder is None else encoder(request.base)
                demand = Demand(ref.token, number, start, stop, request.chunk_size, made)
                self.send_queue.add(demand, urgent=request.urgent)

    def _excess(self, request: wire.Fetch, source: Source) -> str:
        """Describe how a request has the sender allocate too much; an empty string if not."""
        most, nbytes = self._limits.scratch_bytes, source.layout.nbytes
        if request.chunk_size or nbytes <= most:
            return ""
        return f"more than {most} bytes are not put into one message here (Limits.scratch_bytes)"

    def _digest(self, request: wire.Digest, source: Source) -> None:
        flaw = _flaw(request, source.layout.nbytes)
        if flaw:
            self._refuse(request, flaw)
            return
        self._digesting = Digesting(request, source)
        self._digest_some()

    def _digest_some(self) -> None:
        """Digest as much as one turn allows, and answer once all of it is done."""
        digesting = self._digesting
        assert digesting is not None
        if digesting.request.token not in self._refs:
            self._digesting = None
            self._refuse(digesting.request, "the ref settled before this was digested")
            return
        try:
            done = digesting.go_on(self._limits.hashed_bytes, self._scratch)
        except FlstreamError as error:  # such as a file that became shorter
            self._digesting = None
            self._refuse(digesting.request, str(error))
            return
        if done:
            self._digesting = None
            request = digesting.request
            self._send(wire.Digested(request.request, bytes(digesting.packed)), request.token)

    def _close(self, request: wire.Close) -> None:
        # Ranges that it requested and no longer wants need not be sent.
        for demand in self.send_queue.of(request.token):
            self.send_queue.drop(demand)
        ref = self._refs.get(request.token)
        if ref is not None and (delivery := ref.deliveries.get(self.receiver)) is not None:
            source = None if delivery.is_confirmed else ref.source
            ref.receiver_done(self.receiver, _failure(request, source))
            # Another thread may be settling the ref: then this came too late to count.
            if request.ok and not delivery.has_it:
                self._refuse(request, delivery.failure or ref.settled.reason)
                return
        # Of a settled ref it may be a repeat, because the answer was lost.
        elif request.ok and not self._has(request.token):
            settled = self._offers.settled.get(request.token)
            late = settled.reason if settled is not None else "this ref is not on offer"
            self._refuse(request, late)
            return
        self._send(wire.Closed(request.request), request.token)

    def _has(self, token: bytes) -> bool:
        """Whether the receiver has closed a ref with success that has settled since."""
        settled = self._offers.settled.get(token)
        return settled is not None and self.receiver in settled.have

    def _pong(self, ping: wire.Ping) -> None:
        waiting = self.send_queue.requests
        if self._digesting is not None:
            waiting.append(self._digesting.request.request)
        self._send(wire.Pong(ping.request, waiting), ping.token)

    def _refuse(self, request: wire.Request, reason: str) -> None:
        self._send(wire.Refused(request.request, reason), request.token)

    def _send(self, reply: wire.Reply, token: bytes) -> None:
        self.send_queue.post(wire.pack_message(reply, token))


def _is(source: Source, digest: str) -> bool:
    """Return whether a body, if it is a short one, has the digest that a receiver has stated."""
    if not digest or source.layout.nbytes > MOST_EAGER_BYTES:
        return False
    with suppress(FlstreamError):  # of a file that cannot be read any more, which is then found out
        return body_digest(source) == digest
    return False


def _failure(close: wire.Close, source: Source | None) -> str | None:
    """Return why a receiver that closes does not have the snapshot, or None if it has."""
    if not close.ok:
        return quotable(close.reason)
    return None if source is None else change_of(source)


def _flaw(request: wire.Fetch | wire.Digest, nbytes: int, most: int = wire.MAX_CHUNK_BYTES) -> str:
    """Describe the error in a request for a body of ``nbytes``; an empty string if none."""
    if not 0 <= request.start < request.stop <= nbytes:
        return f"bytes {request.start} to {request.stop} are not a range of a body of {nbytes}"
    if request.chunk_size > most or (request.chunk_size == 0 and most < wire.MAX_CHUNK_BYTES):
        return f"chunks of more than {most} bytes are not sent"
    if request.chunk_size < 0 or request.chunk_size % ALIGNMENT or request.start % ALIGNMENT:
        return f"chunk size and start must be multiples of {ALIGNMENT}"
    if isinstance(request, wire.Digest):
        length, size = request.stop - request.start, request.chunk_size
        if any(number * size >= length for number in request.sample):
            return f"a chunk of the sample is not among those of {length} bytes"
        if request.sample:
            length = min(length, len(request.sample) * size)
        if not size or length > wire.MAX_DIGEST_BYTES or length > wire.MAX_DIGESTS * size:
            return f"the digests of {length} bytes are too many for one answer"
        return ""
    if request.chunk_size == 0 and (request.start, request.stop) != (0, nbytes):
        return "a model serialised into one message can only be had whole"
    return ""
