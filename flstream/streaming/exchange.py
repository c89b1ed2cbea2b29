"""The messages of one download: requests to the sender of a ref, and what it answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Self, TypeVar

from flstream.errors import (
    AbortedError,
    BrokenStreamError,
    ChannelClosedError,
    DeadlineError,
    ProtocolError,
    RefusedError,
    StreamingError,
)
from flstream.streaming import wire
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.text import quotable
from flstream.transport.channel import AbortSignal, AnySignal, Deadline, Signal, wait_readable

BROKEN = (ChannelClosedError, BrokenStreamError)
"""Errors of a connection, after which a download may go on over a new one."""

# Bytes of an answer to an open that are not the layout.
_BESIDE_LAYOUT = 1 << 20
# Bytes as which a packet counts beside its payload, however short: to read it takes as long.
_PACKET_COST = 1 << 10
# Bytes beyond the body after which a sender that keeps repeating itself is given up.
_MOST_REPEATED = 256 << 20

ReplyT = TypeVar("ReplyT", wire.Opened, wire.Digested, wire.Pong, wire.Closed)


class Exchange:
    """The messages of one download, and the time that it waits for them.

    The time of a request passes while the sender is listened to; what is done with the bytes that
    came does not count. So the object is a context manager around listening.

    Args:
        receiver: Receiving side of the channel.
        token: Token of the ref.
        settings: Sizes, window and timeouts.
        abort: Signal that cancels this download, beside that of the receiver.

    Attributes:
        token: As given.
        peer: Name of the sender.
        has_missed: Whether packets of this download were passed over, which is then to ask anew.
        due: Describes what the sender is still to send, for messages.
        pending: Returns the numbers of the requests whose answers have not come.
    """

    def __init__(
        self,
        receiver: Receiver,
        token: bytes,
        settings: StreamSettings,
        abort: AbortSignal | None = None,
    ) -> None:
        self.token = token
        self.peer = receiver.peer
        self.has_missed = False
        self.due: Callable[[], str] = lambda: "anything"
        self.pending: Callable[[], Collection[int]] = tuple
        self._receiver = receiver
        self._incoming = receiver.incoming
        self._settings = settings
        self._abort = receiver.abort if abort is None else abort
        if receiver.abort is not None and abort is not None:
            self._abort = AnySignal(receiver.abort, abort)
        self._thread = threading.current_thread()
        self._timeout = self._left = settings.request_timeout
        self._began = self._active_at = time.monotonic()
        self._ping: int | None = None
        self._repeated = 0
        self._most_repeated = _MOST_REPEATED
        other = receiver.exchanges.get(token)
        if other is not None and other.is_elsewhere:
            raise RefusedError("this ref is being downloaded over the same connection already")
        receiver.exchanges[token] = self

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._active_at = max(self._active_at, self._began)
        self._thread = threading.current_thread()
        return self

    def __exit__(self, *_: object) -> None:
        self._left, self._began = self._now_left, time.monotonic()

    @property
    def is_elsewhere(self) -> bool:
        """Whether another thread than this one may read what comes for it."""
        return self._thread is not threading.current_thread() and self._thread.is_alive()

    @property
    def capabilities(self) -> frozenset[str]:
        """What the sender can do beyond what every one can."""
        return self._incoming.capabilities or frozenset()

    def renew(self, seconds: float | None = None) -> None:
        """Start the time again, for the next request, with another limit if one is given."""
        self._timeout = self._left = seconds or self._timeout
        self._began = time.monotonic()

    def end(self) -> None:
        """Take nothing more of what comes for the ref."""
        if self._receiver.exchanges.get(self.token) is self:
            del self._receiver.exchanges[self.token]
        self._incoming.forget()

    def next_number(self) -> int:
        """Return a new number for a request."""
        return self._receiver.next_number()

    def send(self, request: wire.Request) -> None:
        """Send a request."""
        self._incoming.send(wire.pack_message(request, request.token), Deadline(self._timeout))

    def ask(
        self,
        request: wire.Request,
        answer: type[ReplyT],
        *,
        meanwhile: Callable[[], None] | None = None,
    ) -> ReplyT:
        """Send a request, and wait for its answer; again, if the connection breaks meanwhile.

        Args:
            request: Request to send.
            answer: Type of the answer.
            meanwhile: Called once the request is sent, before its answer is read.

        Raises:
            RefusedError: The sender refused the request.
            DeadlineError: The time is used up.
            ProtocolError: The sender keeps sending other messages.
        """
        before = self.due, self.pending
        self.due = lambda: f"an answer to {type(request).__name__}"
        self.pending = lambda: (request.request,)
        try:
            while True:
                try:
                    self.send(request)
                    if meanwhile is not None:
                        meanwhile()
                        meanwhile = None
                    return self._answer(request.request, answer)
                except BROKEN as error:
                    self.recover(error)
        finally:
            self.due, self.pending = before

    def recover(self, error: StreamingError) -> None:
        """Go on over a new connection.

        Raises:
            StreamingError: There is none to be had.
        """
        self._receiver.reconnect(self._incoming, error, self._abort, self._now_left)
        self._incoming = self._receiver.incoming
        self._ping = None
        self._active_at = time.monotonic()
        self.has_missed = True

    def header(self) -> wire.Header:
        """Wait for the next packet of the ref, and return its header.

        Its payload is to be read next, up to the call of :meth:`done`.
        """
        header = self._incoming.header(self)
        self._active_at = time.monotonic()
        return header

    def payload(self, views: Sequence[memoryview]) -> int:
        """Fill the views with the payload, and return its xxh3-64."""
        return self._incoming.payload(views, self)

    def done(self, *, of_use: bool = False) -> None:
        """Leave what comes next to whom it is for.

        Args:
            of_use: Whether the packet was, so that the connection counts as sound.
        """
        self._incoming.done()
        if of_use:
            self._receiver.of_use()

    def message(self, header: wire.Header) -> wire.Reply | None:
        """Read the message behind a header.

        Returns:
            The message; None for one that is dealt with here.

        Raises:
            ProtocolError: It is too long, or cannot be read.
        """
        most = self._receiver.limits.layout_bytes + _BESIDE_LAYOUT
        if header.length > most:
            raise ProtocolError(
                f"{self.peer} sent a message of {header.length} bytes, and {most} are taken here "
                "at most (Limits.layout_bytes)"
            )
        self.count_useless(header.length)
        payload = memoryview(bytearray(header.length))
        if self.payload([payload]) != header.digest:
            raise BrokenStreamError(f"a message of {self.peer} does not match its digest")
        reply = wire.decode_reply(payload, self.peer)
        if isinstance(reply, wire.Hello):
            return None
        if reply.request == self._ping:
            self._ping = None
            if isinstance(reply, wire.Refused):
                raise self.refusal(reply)
            earlier = {number for number in self.pending() if number < reply.request}
            if isinstance(reply, wire.Pong) and not earlier.issubset(reply.requests):
                # Whatever was sent before this answer has been read by now.
                raise BrokenStreamError(f"{self.peer} did not send {self.due()}: it was lost")
        return reply

    def refusal(self, refused: wire.Refused) -> RefusedError:
        """Make the error for a refusal."""
        return RefusedError(f"{self.peer} refused: {quotable(refused.reason)}")

    def allow(self, nbytes: int) -> None:
        """Allow the sender to repeat ``nbytes`` more: a body of that length is being sent."""
        self._most_repeated += nbytes

    def count_useless(self, length: int) -> None:
        """Count the bytes of a packet that brings no chunk.

        Raises:
            ProtocolError: The sender keeps sending such packets.
        """
        self._repeated += _PACKET_COST + length
        if self._repeated > self._most_repeated:
            raise ProtocolError(f"{self.peer} repeats itself: {self._repeated} bytes to no use")

    def check(self) -> None:
        """Look at the signal, also while bytes keep coming.

        Raises:
            AbortedError: It was set.
        """
        if self._abort is not None and self._abort.is_set():
            raise AbortedError(f"the transfer with {self.peer} was called off")

    def expect_left(self) -> None:
        """Give up a sender that has sent nothing of use in time, however much it has sent.

        Raises:
            DeadlineError: The time of the request is used up.
        """
        if self._now_left <= 0:
            raise DeadlineError(
                f"{self.peer} did not send {self.due()} within {self._timeout:g} s; "
                "it may hang, or be slower than (streaming_)per_request_timeout allows"
            )

    def wait(self) -> None:
        """Wait for bytes, and find out whether the sender lives if there are none.

        Raises:
            DeadlineError: The time of the request is used up.
            ChannelClosedError: The sender does not answer.
        """
        self.expect_left()
        how = self._settings
        quiet = how.ping_after if self._ping is None else how.ping_timeout
        if self._incoming.wait(self._seconds_after(quiet), self._abort):
            self._active_at = time.monotonic()
        elif self._ping is None:
            self._ask_for_life()
        elif time.monotonic() - self._active_at >= quiet:
            raise ChannelClosedError(
                f"{self.peer} did not answer within {quiet:g} s whether it lives; its process "
                "hangs, or the network does"
            )

    def wait_for(self, turn: Signal) -> None:
        """Wait until it may be this download's turn to read: see :meth:`wait`.

        The sender may have answered: who has the turn is perhaps busy with what came.
        """
        self.expect_left()
        deadline = Deadline(self._seconds_after(self._settings.ping_after))
        if wait_readable(turn.fileno(), deadline, self._abort, self.peer) or self._ping is not None:
            self._active_at = time.monotonic()
        else:
            self._ask_for_life()

    def _seconds_after(self, quiet: float) -> float:
        """Seconds to wait for ``quiet`` ones without a byte, as far as there is time."""
        return max(min(self._active_at + quiet - time.monotonic(), self._now_left), 0.0)

    @property
    def _now_left(self) -> float:
        return self._left - (time.monotonic() - self._began)

    def _ask_for_life(self) -> None:
        if time.monotonic() - self._active_at >= self._settings.ping_after:
            self._ping = self.next_number()
            self.send(wire.Ping(self.token, self._ping))
            self._active_at = time.monotonic()

    def _answer(self, number: int, answer: type[ReplyT]) -> ReplyT:
        """Wait for the answer to a request."""
        with self:
            while True:
                self.expect_left()
                header, reply = self.header(), None
                try:
                    if header.kind == wire.MESSAGE:
                        reply = self.message(header)
                    else:
                        self.count_useless(header.length)
                finally:
                    self.done()
                if isinstance(reply, wire.Refused) and reply.request == number:
                    self._receiver.of_use()
                    raise self.refusal(reply)
                if isinstance(reply, answer) and reply.request == number:
                    self._receiver.of_use()
                    return reply
