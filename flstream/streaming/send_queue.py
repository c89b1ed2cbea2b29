"""The messages and chunks that one receiver is still to be sent."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import suppress
from itertools import chain

from flstream.errors import FlstreamError
from flstream.model.source import Scratch
from flstream.streaming.content import Content, Copied
from flstream.streaming.frames import Demand, Frame, Preparation
from flstream.streaming.refs import Ref
from flstream.streaming.wire import Refused, pack_message
from flstream.transport.channel import Channel
from flstream.transport.lending import Loans

# Filler for the rest of a frame whose ref has settled.
_ZEROS = memoryview(bytes(64 << 10))


class SendQueue:
    """Sends one receiver its messages and chunks, as its channel takes them.

    Messages go first, then urgent requests, then all others, each in the order of its requests.

    Args:
        channel: Channel that carries the packets.
        receiver: Name of the receiver.
        refs: Every open ref, by token.
        scratch: Buffer that all connections of a service share; it is used only within a call.
        most_hashed: Bytes that are digested in one call.
        threads: Digest what is sent next to a channel that copies; None to do so between calls.

    Attributes:
        loans: What the channel was lent.
    """

    def __init__(
        self,
        channel: Channel,
        receiver: str,
        refs: Mapping[bytes, Ref],
        scratch: Scratch,
        most_hashed: int,
        threads: Executor | None = None,
    ) -> None:
        self._channel = channel
        self._receiver = receiver
        self._refs = refs
        self._scratch = scratch
        self._most_hashed = most_hashed
        self._threads = None if channel.lends else threads
        self.loans = Loans(channel.fileno())
        self._messages: deque[bytes] = deque()
        self._message_bytes = 0
        self._urgent: deque[Demand] = deque()
        self._demands: deque[Demand] = deque()
        # The packet being sent, if any, and the same again if it is a frame.
        self._packet: Content | None = None
        self._frame: Frame | None = None
        # The next frame, prepared while the channel is full, and before that its preparation.
        self._ahead: Frame | None = None
        self._preparation: Preparation | None = None

    @property
    def messages(self) -> int:
        """Number of messages that wait."""
        return len(self._messages)

    @property
    def message_bytes(self) -> int:
        """Bytes of the messages that wait."""
        return self._message_bytes

    @property
    def demands(self) -> int:
        """Number of requests that wait."""
        return len(self._urgent) + len(self._demands)

    @property
    def requests(self) -> list[int]:
        """Numbers of the requests that are not fully answered."""
        return list(dict.fromkeys(each.request for each in chain(self._urgent, self._demands)))

    @property
    def has_output(self) -> bool:
        """Whether there is anything that may be sent."""
        return bool(self._packet or self._messages or self._next_demand())

    def post(self, message: bytes) -> None:
        """Add a packed message."""
        self._messages.append(message)
        self._message_bytes += len(message)

    def add(self, demand: Demand, *, urgent: bool = False) -> None:
        """Add a range."""
        (self._urgent if urgent else self._demands).append(demand)

    def of(self, token: bytes) -> list[Demand]:
        """Return the demands for a ref that are not fully sent."""
        return [each for each in chain(self._urgent, self._demands) if each.token == token]

    def drop(self, demand: Demand) -> None:
        """Remove a demand."""
        for queue in (self._urgent, self._demands):
            if demand in queue:
                queue.remove(demand)

    def drop_settled(self) -> None:
        """Release the memory of refs that have settled, even under a frame that is taken slowly."""
        if self._ahead is not None and self._ahead.demand.token not in self._refs:
            self._ahead = None
        if self._preparation is not None and self._preparation.demand.token not in self._refs:
            self._preparation = None
        if self._frame is not None and self._frame.demand.token not in self._refs:
            self._blank_frame()
        self.loans.forget([token for token in self.loans.ended() if token not in self._refs])

    def _blank_frame(self) -> None:
        """Send zeros for the rest of the frame: the receiver finds it damaged, and asks again."""
        assert self._frame is not None
        left = self._frame.left if self._frame.has_begun else 0
        whole, rest = divmod(left, len(_ZEROS))
        self._frame = None
        self._packet = Copied([*[_ZEROS] * whole, _ZEROS[:rest]]) if left else None

    def write(self) -> None:
        """Send at most one packet, so that other channels get their turn."""
        if self._packet is None:
            self._packet = self._next_packet()
        if self._packet is None:
            return
        if self._threads is not None and self._ahead is None:
            self._begin_ahead(self._threads)
        # The channel takes a chunk in pieces. Continuing while it does saves a call of the selector
        # for each.
        taken = 0
        while self._packet is not None and self._packet.left and (count := self._send_some()):
            taken += count
        if taken and self._frame is not None:
            self._note_progress(self._frame)
        if self._packet is None or not self._packet.left:
            self._packet = self._frame = None
        if self._ahead is None:
            self._prepare()

    def _send_some(self) -> int:
        """Send what the channel takes of the packet, and return the number of bytes."""
        loans = self.loans
        with loans.lock:
            if self._frame is not None and loans.has_ended(self._frame.demand.token):
                self._blank_frame()  # its memory is its owner's again
            if self._packet is None:
                return 0
            count = self._packet.send_some(self._channel)
            loans.sent(count)
            if self._frame is not None:
                lending = self._packet.lent()
                if lending is not None:
                    loans.lent(self._frame.demand.token, lending)
            return count

    def _note_progress(self, frame: Frame) -> None:
        ref = self._refs.get(frame.demand.token)
        if ref is not None:
            ref.deliveries[self._receiver].active_at = time.monotonic()

    def _next_packet(self) -> Content | None:
        while not self._messages and (demand := self._next_demand()) is not None:
            self._frame = self._next_frame(demand)
            if self._frame is not None:
                self._note(self._frame)
                return self._frame
            if self._preparation is not None:
                return None  # in one of the next turns
        if not self._messages:
            return None
        message = self._messages.popleft()
        self._message_bytes -= len(message)
        return Copied([memoryview(message)])

    def _next_demand(self) -> Demand | None:
        return next(chain(self._urgent, self._demands), None)

    def _next_frame(self, demand: Demand) -> Frame | None:
        """Return the next frame of a demand.

        Returns:
            The frame; None if it is still being prepared, or there is none, of which the receiver
            is informed.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.demand is demand and ahead.start == demand.next:
            return ahead
        begun, self._preparation = self._preparation, None
        ref = self._refs.get(demand.token)
        reason = "the ref settled before this was sent"
        if ref is not None and (source := ref.source) is not None:
            if begun is None or begun.demand is not demand or begun.start != demand.next:
                begun = Preparation(demand, ref, source, lends=self._channel.lends)
            try:
                frame = begun.go_on(self._most_hashed, self._scratch)
            except FlstreamError as error:
                reason = str(error)
            else:
                self._preparation = begun if frame is None else None
                return frame
        self.drop(demand)
        self.post(pack_message(Refused(demand.request, reason), demand.token))
        return None

    def _begin_ahead(self, threads: Executor) -> None:
        """Have the next chunk digested by another thread, while this one copies to the kernel."""
        demand = self._next_demand()
        ref = None if demand is None else self._refs.get(demand.token)
        if demand is None or ref is None or (source := ref.source) is None:
            return
        if self._preparation is None:
            self._preparation = Preparation(demand, ref, source, lends=False)
            with suppress(FlstreamError):  # which is raised again when the chunk is due
                self._preparation.begin(threads, self._most_hashed)

    def _prepare(self) -> None:
        """Digest the next chunk while the receiver reads what the channel took."""
        demand = self._next_demand()
        if demand is not None and demand.chunk_size:
            self._ahead = self._next_frame(demand)

    def _note(self, frame: Frame) -> None:
        """Record that a frame is being sent."""
        frame.demand.next = frame.stop
        if frame.stop == frame.demand.stop:
            self.drop(frame.demand)
        ref = self._refs.get(frame.demand.token)
        if ref is not None:
            delivery = ref.deliveries[self._receiver]
            delivery.chunks += 1
            delivery.bytes += frame.length
