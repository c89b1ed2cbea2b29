"""The receiver's end of a channel, and how it is to fetch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from flstream.errors import DeadlineError
from flstream.streaming.packets import PacketReader
from flstream.streaming.wire import Request, pack_message
from flstream.transport.channel import AbortSignal, Channel, Deadline


class StreamSettings(NamedTuple):
    """How a receiver fetches.

    Attributes:
        chunk_size: longest frame in bytes, a multiple of 16; 0 fetches the whole model serialised
            into one message.
        request_size: bytes that one request covers. It is cut down to whole chunks; if it is less
            than a chunk, chunks are as short as it.
        window: requests in flight.
        request_timeout: seconds of waiting for the sender that one request may cost.
        probe_after: seconds of silence after which the sender is asked what became of a request.
            What was lost on the way is then fetched again, long before the request times out.
        push: whether the sender is to send before it is asked. If it does not, it is asked after
            ``probe_after``.
    """

    chunk_size: int = 2 << 20
    request_size: int = 64 << 20
    window: int = 2
    request_timeout: float = 600.0
    probe_after: float = 1.0
    push: bool = False

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
        self.packets = PacketReader(channel, peer)
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

    def wait(self, seconds: float) -> bool:
        """Wait until there is something to be read; False if there is nothing after ``seconds``.

        Raises:
            AbortedError: the abort signal was given.
        """
        return self._channel.wait(seconds, self._abort)


class Patience:
    """The time that one request may cost, spent in waiting for the sender alone.

    Args:
        receiver: whose channel is waited for.
        timeout: seconds.
    """

    def __init__(self, receiver: Receiver, timeout: float) -> None:
        self._receiver = receiver
        self._timeout = timeout
        self._left = timeout

    def renew(self) -> None:
        """Begin again, for the next request."""
        self._left = self._timeout

    def wait(self, seconds: float, due: Callable[[], str]) -> bool:
        """Wait for the sender for at most ``seconds``; False if it stayed silent.

        Args:
            seconds: after which to look at what else is to be done.
            due: says what the sender owes, if it comes to that.

        Raises:
            DeadlineError: the time of the request is used up.
        """
        began = time.monotonic()
        heard = self._receiver.wait(min(seconds, self._left))
        self._left -= time.monotonic() - began
        if not heard and self._left <= 0:
            raise DeadlineError(
                f"{self._receiver.peer} did not send {due()} within {self._timeout:g} s; "
                "it may hang, or be slower than streaming_per_request_timeout allows"
            )
        return heard
