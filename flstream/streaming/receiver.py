"""The receiving side of a channel, which comes back where its connection breaks."""

from __future__ import annotations

import secrets
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from flstream.errors import AbortedError, StreamingError
from flstream.streaming.incoming import IncomingPackets
from flstream.streaming.limits import DEFAULT_LIMITS, Limits
from flstream.streaming.settings import StreamSettings as StreamSettings
from flstream.streaming.speeds import Speeds
from flstream.streaming.wire import NOBODY, VERSION, Hello, Ping, pack_message
from flstream.transport.channel import AbortSignal, Channel, Deadline

if TYPE_CHECKING:
    from flstream.streaming.exchange import Exchange

RECONNECT_SECONDS = 10.0
"""Seconds for which a receiver without a connection stays declared, and for which it tries anew."""

BEAT_SECONDS = 2.0
"""Seconds after which a receiver says that it lives, on a channel that may die in silence."""

_LARGEST_NUMBER = 2**32 - 1
_LONGEST_BACKOFF = 1.0

Connect = Callable[[], Channel]
"""Function that makes a new connection to the same sender."""


class Receiver:
    """The receiving end of a channel, with a download service at the other end.

    Threads may share it, each for a download of its own. Their chunks come over one connection, so
    that one which is slow to take its own holds up the others.

    Attributes:
        peer: Name of the sender.
        limits: What the sender may cause.
        abort: Signal that cancels every download.
        incoming: The packets of the present connection.
        exchanges: Downloads under way, by the tokens of their refs.
        speeds: What sending and comparing cost.

    Args:
        channel: Channel that carries the packets.
        peer: Name of the sender, for messages.
        abort: Signal that cancels every download.
        limits: What the sender may cause.
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
        self.exchanges: weakref.WeakValueDictionary[bytes, Exchange] = weakref.WeakValueDictionary()
        self.speeds = Speeds()
        self._connect = connect
        self._hello = pack_message(Hello(VERSION, secrets.token_bytes(16)))
        self._numbering = threading.Lock()
        self._number = 0
        self._connecting = threading.Lock()
        # Since when connections have broken without anything of use from one.
        self._failing_since: float | None = None
        self._tried_at = 0.0
        self._attempts = 0
        self._closed = threading.Event()
        self.incoming = self._incoming_on(channel)
        if channel.beats:
            beats = threading.Thread(
                target=_beat, args=(weakref.ref(self), self._closed), name="beats", daemon=True
            )
            beats.start()

    def next_number(self) -> int:
        """Return a new number for a request: from 1 up, and after the largest one from 1 again."""
        with self._numbering:
            self._number = self._number % _LARGEST_NUMBER + 1
            return self._number

    def of_use(self) -> None:
        """Note that something of use has come, so that the connection is sound."""
        self._failing_since = None
        self._attempts = 0

    def reconnect(
        self,
        lost: IncomingPackets,
        error: StreamingError,
        abort: AbortSignal | None,
        seconds: float,
    ) -> None:
        """Make a new connection in the place of one that broke, unless there is one by now.

        Args:
            lost: The connection that broke.
            error: How it broke.
            abort: Signal that ends the attempts.
            seconds: Seconds that they may take.

        Raises:
            StreamingError: As given, if there is no way to connect again; or that of the last
                attempt, once that was in vain for :data:`RECONNECT_SECONDS`.
        """
        with self._connecting:
            if self.incoming is not lost:
                return
            lost.close()
            if self._connect is None:
                raise error
            now = time.monotonic()
            if self._failing_since is None or now - self._tried_at > RECONNECT_SECONDS:
                self._failing_since, self._attempts = now, 0
            until = min(self._failing_since + RECONNECT_SECONDS, now + seconds)
            while time.monotonic() < until and not self._closed.is_set():
                self._tried_at = time.monotonic()
                if abort is not None and abort.is_set():
                    raise AbortedError(f"the transfer with {self.peer} was called off") from error
                try:
                    self._back_off()
                    self.incoming = self._incoming_on(self._connect())
                except StreamingError as failure:
                    error = failure
                else:
                    if self._closed.is_set():
                        self.incoming.close()
                    return
            raise error

    def close(self) -> None:
        """Close the connection, and do not come back."""
        self._closed.set()
        self.incoming.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _back_off(self) -> None:
        """Wait before an attempt to connect: not before the first, then twice as long each time."""
        if self._attempts:
            self._closed.wait(min(0.05 * 2.0 ** (self._attempts - 1), _LONGEST_BACKOFF))
        self._attempts = min(self._attempts + 1, 16)

    def _incoming_on(self, channel: Channel) -> IncomingPackets:
        return IncomingPackets(channel, self.peer, self._hello, self.exchanges)


def _beat(receiver: weakref.ref[Receiver], closed: threading.Event) -> None:
    """Have the sender know that a receiver lives, as long as it does."""
    beat = pack_message(Ping(NOBODY, 0))
    while not closed.wait(BEAT_SECONDS):
        held = receiver()
        if held is None:
            return
        incoming = held.incoming
        try:
            incoming.send(beat, Deadline(BEAT_SECONDS))
        except StreamingError as error:
            with suppress(StreamingError):  # the next beat tries again
                held.reconnect(incoming, error, held.abort, BEAT_SECONDS)
        del held, incoming
