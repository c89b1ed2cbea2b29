"""Receiving side of a channel, which reconnects when its connection breaks."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Self, TypeVar

from flstream.errors import (
    BrokenStreamError,
    ChannelClosedError,
    DeadlineError,
    ProtocolError,
    RefusedError,
    StreamingError,
)
from flstream.model.layout import Layout
from flstream.streaming import wire
from flstream.streaming.settings import DEFAULT_LIMITS, Limits, StreamSettings
from flstream.text import quotable
from flstream.transport.channel import AbortSignal, Channel, Deadline

RECONNECT_SECONDS = 10.0
"""Seconds for which a receiver without a connection stays declared, and for which it tries anew."""

BEAT_SECONDS = 2.0
"""Seconds after which a receiver says that it lives, on a channel that may die in silence."""

BROKEN = (ChannelClosedError, BrokenStreamError)
"""Errors of a connection, after which a download may go on over a new one."""

_NOBODY = bytes(wire.TOKEN_BYTES)
_LARGEST_NUMBER = 2**32 - 1
_LONGEST_BACKOFF = 1.0
# Seconds that a receiver waits for the sender to confirm that a download is closed.
_CLOSE_SECONDS = 5.0
# Bytes of an answer to an open that are no layout, of which it has two: digests, places in memory.
_BESIDE_LAYOUT = 4 << 20
# Bytes as which a packet counts beside its payload, however short: to read it takes as long.
_PACKET_COST = 1 << 10
# Bytes beyond the body after which a sender that keeps repeating itself is given up.
_MOST_REPEATED = 256 << 20
# Bytes of a download that has failed that are read to tell the sender of it.
_MOST_SKIPPED = 16 << 20

Connect = Callable[[], Channel]
"""Function that makes a new connection to the same sender."""

ReplyT = TypeVar("ReplyT", wire.Opened, wire.Found, wire.Pong, wire.Closed)


class Receiver:
    """Receiving end of a channel, with a download service at the other end.

    It carries one download at a time. Threads may share it: each waits for its turn, which is from
    :meth:`begin` to :meth:`end`.

    Attributes:
        peer: Name of the sender.
        limits: Limits on what the sender may cause.
        abort: Signal that cancels every download.
        channel: The present connection.
        packets: Packets that arrive on the download's connection.
        fetching: Number of the request that frames are to come for; 0 for none.
        was_lost: Whether what was asked for is not to come: the connection broke since, or the
            sender says that it has sent all.
        awaited: Layout of the body whose frames are to come, and the offset of the next one; None
            for none.
        most_useless: Bytes of no use that the sender may send during the download.

    Args:
        channel: Channel that carries the packets.
        peer: Name of the sender, for messages.
        abort: Signal that cancels every download.
        limits: Limits on what the sender may cause.
        connect: Makes a new connection once the channel is broken, so that downloads go on with
            what is missing. Without it, they fail: a broken pair of sockets is a lost process.
    """

    def __init__(
        self,
        channel: Channel,
        peer: str,
        abort: AbortSignal | None = None,
        limits: Limits = DEFAULT_LIMITS,
        connect: Connect | None = None,
    ) -> None:
        self.peer = peer
        self.limits = limits
        self.abort = abort
        self._connect = connect
        self._hello = wire.pack_message(wire.Hello(wire.VERSION))
        self._number = 0
        self._turn = threading.Lock()
        self._whose: int | None = None  # thread
        self._sending = threading.RLock()
        # Since when connections have broken without anything of use from one.
        self._failing_since: float | None = None
        self._attempts = 0
        self._closed = threading.Event()
        self._adopt(channel)
        if channel.beats:
            beats = threading.Thread(
                target=_beat, args=(weakref.ref(self), self._closed), name="beats", daemon=True
            )
            beats.start()

    def _adopt(self, channel: Channel) -> None:
        self.channel = channel
        self._arriving = wire.PacketReader(channel, self.peer)
        self._greeting = self._hello

    # The turn of a download.

    def begin(
        self, token: bytes, settings: StreamSettings, abort: AbortSignal | None = None
    ) -> None:
        """Wait for the turn of a ref's download.

        Raises:
            RefusedError: The thread has a turn already.
            DeadlineError: Another download is under way for too long.
        """
        if self._whose == threading.get_ident():
            raise RefusedError(
                f"another download from {self.peer} is under way on this connection, which carries "
                "one at a time; end it first"
            )
        if not self._turn.acquire(timeout=min(settings.request_timeout, threading.TIMEOUT_MAX)):
            raise DeadlineError(
                f"another download from {self.peer} is under way, and a connection carries one at "
                "a time; let it end, or connect a second time"
            )
        self._whose = threading.get_ident()
        self._token, self._settings = token, settings
        self._aborts = [signal for signal in (self.abort, abort) if signal is not None]
        self._timeout = settings.request_timeout
        self._deadline = Deadline(self._timeout)
        self._asked: wire.Request | None = None
        self._ping = self.fetching = 0
        self.was_lost = self._is_failing = False
        self.awaited: tuple[Layout, int] | None = None
        self._useless, self.most_useless = 0, _MOST_REPEATED
        self.packets = self._arriving

    def end(self) -> None:
        """Pass the turn to the next download."""
        self._whose = None
        self._turn.release()

    def settle(self, failure: str = "") -> None:
        """Tell the sender that this receiver is done with the ref, or why it failed.

        Raises:
            RefusedError: The sender does not agree that it succeeded: what it offered was changed
                meanwhile, or it gave this receiver up.
            StreamingError: The sender cannot be told.
        """
        how = self._settings
        # The answer may take as little time as that to a ping.
        self._timeout = min(max(_CLOSE_SECONDS, how.ping_timeout), how.request_timeout)
        self.ask(wire.Close(self._token, self.next_number(), not failure, failure), wire.Closed)

    def give_up(self, failure: str) -> None:
        """Tell the sender that a download has failed, over the present connection."""
        # Neither does a signal end it. What is on its way is skipped, up to the answer: in a frame,
        # the sender looks at nothing.
        self._aborts, self._is_failing = [], True
        self._useless, self.most_useless = 0, _MOST_SKIPPED
        if self.packets.left <= _MOST_SKIPPED:
            self.settle(failure)
        else:
            self._deadline = Deadline(_CLOSE_SECONDS)
            self.request(wire.Close(self._token, self.next_number(), False, failure))

    def ask(self, request: wire.Request, answer: type[ReplyT]) -> ReplyT:
        """Send a request, and wait for its answer; repeat if either is lost."""
        self._asked, self._deadline = request, Deadline(self._timeout)
        try:
            while True:
                try:
                    self.request(request)
                    self.was_lost = False
                    while not self.was_lost:
                        self.expect_on()
                        header = self.packets.header(self.wait)
                        if header.kind != wire.MESSAGE:
                            self.count_useless(header.length)
                            continue
                        reply = self.message(header)
                        if isinstance(reply, answer) and reply.number == request.number:
                            self._failing_since, self._attempts = None, 0
                            return reply
                except BROKEN as error:
                    self.recover(error)
        finally:
            self._asked = None

    def request(self, message: wire.Request) -> None:
        """Send a request, and drop the question about an earlier one."""
        self._ping = 0
        self.send(message, self._deadline)

    def recover(self, error: StreamingError) -> None:
        """Continue over a new connection, or raise the error without one."""
        if self._is_failing:
            raise error
        self._reconnect(self.packets.channel, error, self._deadline.left or 0.0, self._aborts)
        self.packets = self._arriving
        self._ping, self.was_lost = 0, True

    def expect_on(self) -> None:
        """Check the signals that end the download."""
        self.packets.channel.expect_on(*self._aborts)

    def message(self, header: wire.Header) -> wire.Reply | wire.Hello | None:
        """Read and return the message behind a header; None if it refuses an earlier request."""
        has_greeted = self.packets.has_greeted
        longest = 2 * self.limits.layout_bytes + _BESIDE_LAYOUT
        most = longest if has_greeted else wire.MAX_REQUEST_BYTES
        payload = self.packets.message(header, most, self.wait)
        self.count_useless(header.length)
        reply = wire.decode(wire.REPLIES, payload, self.peer)
        if isinstance(reply, wire.Hello):
            wire.expect_version(reply.version, self.peer)
            self.packets.has_greeted = True
        elif not has_greeted:
            raise BrokenStreamError(f"{self.peer} did not greet")
        request = 0 if self._asked is None else self._asked.number
        if isinstance(reply, wire.Refused):
            if reply.number in (self.fetching, self._ping, request):
                raise RefusedError(f"{self.peer} refused: {quotable(reply.reason)}")
            return None
        if isinstance(reply, wire.Pong) and reply.number == self._ping:
            self._ping = 0
            # Whatever was sent before this answer has been read by now.
            self.was_lost = reply.answering != (request or self.fetching)
        return reply

    def count_useless(self, length: int) -> None:
        """Count a packet without a chunk; refuse a sender of too many."""
        self._useless += _PACKET_COST + length
        if self._useless > self.most_useless:
            raise ProtocolError(f"{self.peer} repeats itself: {self._useless} bytes to no use")

    def of_use(self) -> None:
        """Note a received chunk: the connection works, and the time limit begins anew."""
        self._failing_since, self._attempts = None, 0
        self._deadline = Deadline(self._timeout)

    def wait(self) -> None:
        """Wait for bytes, and check whether the sender lives if none come."""
        how, quiet = self._settings, 0.0
        while True:
            limit = how.ping_timeout if self._ping else how.ping_after
            began = time.monotonic()
            if self.packets.channel.wait(self._deadline, *self._aborts, most=limit - quiet):
                return
            quiet += time.monotonic() - began
            if (self._deadline.left or 0.0) <= 0:
                raise DeadlineError(
                    f"{self.peer} did not send {self._lacking()} within {self._timeout:g} s; "
                    "it may hang, or be slower than (streaming_)per_request_timeout allows"
                )
            if quiet < limit:
                continue
            if self._ping:
                raise ChannelClosedError(
                    f"{self.peer} did not answer within {limit:g} s whether it lives; its process "
                    "hangs, or the network does"
                )
            self._ping, quiet = self.next_number(), 0.0
            self.send(wire.Ping(self._token, self._ping), self._deadline)

    def _lacking(self) -> str:
        """Describe the missing packets."""
        if self._asked is not None:
            return f"an answer to {type(self._asked).__name__}"
        if self.awaited is None:
            return "anything"
        layout, start = self.awaited
        return f"the bytes from {start} on (tensor {layout.name_at(start)!r})"

    # The connection.

    def next_number(self) -> int:
        """Return a new number for a request, from 1 up and around."""
        with self._sending:
            self._number = self._number % _LARGEST_NUMBER + 1
            return self._number

    def send(self, message: wire.Request, deadline: Deadline) -> None:
        """Send a request, after the greeting."""
        with self._sending:
            if self._closed.is_set():
                raise ChannelClosedError(f"the connection to {self.peer} is closed")
            packet = self._greeting + wire.pack_message(message)
            try:
                self.channel.send([memoryview(packet)], deadline)
            except StreamingError:
                self.channel.shut()  # half of a packet may be on its way
                raise
            self._greeting = b""

    def _reconnect(
        self, lost: Channel, error: StreamingError, seconds: float, aborts: list[AbortSignal]
    ) -> None:
        """Connect again, within `seconds`, in place of a broken connection."""
        with self._sending:
            if self.channel is not lost:
                return
            lost.close()
            if self._connect is None:
                raise error
            now = time.monotonic()
            if self._failing_since is None:
                self._failing_since = now
            until = min(self._failing_since + RECONNECT_SECONDS, now + seconds)
            while time.monotonic() < until and not self._closed.is_set():
                lost.expect_on(*aborts)
                if self._attempts:  # not before the first, then twice as long each time
                    self._closed.wait(min(0.05 * 2.0 ** (self._attempts - 1), _LONGEST_BACKOFF))
                self._attempts = min(self._attempts + 1, 16)
                try:
                    self._adopt(self._connect())
                except StreamingError as failure:
                    error = failure
                else:
                    return
            self._failing_since, self._attempts = None, 0
            raise error

    def close(self) -> None:
        """Close the connection, and do not reconnect."""
        self._closed.set()
        self.channel.shut()
        with self._sending:
            self.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _beat(receiver: weakref.ref[Receiver], closed: threading.Event) -> None:
    """Send beats for a receiver while it lives."""
    beat = wire.Ping(_NOBODY, 0)
    while not closed.wait(BEAT_SECONDS):
        held = receiver()
        if held is None:
            return
        channel = held.channel
        try:
            held.send(beat, Deadline(BEAT_SECONDS))
        except StreamingError as error:
            with suppress(StreamingError):  # the next beat tries again
                held._reconnect(channel, error, BEAT_SECONDS, [])
        del held, channel
