"""The receiver's end of a channel, and the settings of downloads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from flstream.errors import DeadlineError
from flstream.model.layout import ALIGNMENT
from flstream.streaming.packets import PacketReader
from flstream.streaming.wire import MAX_CHUNK_BYTES, MAX_REQUESTS, Request, pack_message
from flstream.transport.channel import AbortSignal, Channel, Deadline


@dataclass(frozen=True)
class StreamSettings:
    """Settings of a receiver's downloads.

    Attributes:
        chunk_size: Length in bytes of the longest frame, a multiple of 16 and at most 1 GiB; 0
            fetches the whole model serialised into one message.
        request_size: Bytes that one request covers, rounded down to whole chunks; at least 16. If
            it is less than a chunk, chunks are as short as it.
        window: Number of requests in flight, from 1 to 256.
        request_timeout: Seconds in which the sender has to answer one request.
        probe_after: Seconds of silence after which the sender is asked for the state of a request.
            Lost bytes are then fetched again, long before the request times out.
        push: Whether the sender is to send before it is asked. If it does not, it is asked after
            ``probe_after``.

    Raises:
        ValueError: A setting is none of these; the message names it.
    """

    chunk_size: int = 2 << 20
    request_size: int = 64 << 20
    window: int = 2
    request_timeout: float = 600.0
    probe_after: float = 1.0
    push: bool = False

    def __post_init__(self) -> None:
        sizes = self.chunk_size, self.request_size, self.window
        if any(type(size) is not int for size in sizes):
            raise ValueError(f"chunk_size, request_size and window are whole numbers, not {sizes}")
        if self.chunk_size % ALIGNMENT or not 0 <= self.chunk_size <= MAX_CHUNK_BYTES:
            raise ValueError(
                f"chunk_size is {self.chunk_size}; give a multiple of {ALIGNMENT} up to "
                f"{MAX_CHUNK_BYTES} bytes, or 0 for the whole model in one message"
            )
        if self.request_size < ALIGNMENT:
            raise ValueError(
                f"request_size is {self.request_size}; a request covers {ALIGNMENT} bytes at least"
            )
        if not 1 <= self.window <= MAX_REQUESTS:
            raise ValueError(f"window is {self.window}; give 1 to {MAX_REQUESTS} requests")
        for name in ("request_timeout", "probe_after"):
            if not getattr(self, name) > 0:  # nor is NaN
                raise ValueError(f"{name} is {getattr(self, name)}; give seconds above 0")

    @property
    def frame_size(self) -> int:
        """Length in bytes of the longest frame, or 0 for the whole model at once."""
        return min(self.chunk_size, self.request_size // ALIGNMENT * ALIGNMENT)

    @property
    def bytes_a_request(self) -> int:
        """Bytes that a request covers, a whole number of frames."""
        return self.request_size // self.frame_size * self.frame_size


class Receiver:
    """The receiving end of a channel, with a download service at the other end.

    A single thread uses it at a time, for one download after another.

    Args:
        channel: Channel that carries the packets.
        peer: Name of the sender, for messages.
        abort: Signal that cancels the download.
    """

    def __init__(self, channel: Channel, peer: str, abort: AbortSignal | None = None) -> None:
        self.peer = peer
        self.packets = PacketReader(channel, peer)
        self._channel = channel
        self._abort = abort
        self._last_number = 0

    def next_number(self) -> int:
        """Return a new number for a request.

        Numbers increase, so that stale answers are recognised.
        """
        self._last_number += 1
        return self._last_number

    def send(self, request: Request, timeout: float) -> None:
        """Send a request."""
        packet = memoryview(pack_message(request, request.token))
        self._channel.send([packet], Deadline(timeout))

    def wait(self, seconds: float) -> bool:
        """Wait for bytes to be read; return False if there are none after ``seconds``.

        Raises:
            AbortedError: The abort signal was set.
        """
        return self._channel.wait(seconds, self._abort)


class Patience:
    """The time of one request, which counts only waiting for the sender.

    Args:
        receiver: Receiver whose channel is waited for.
        timeout: Seconds of waiting.
    """

    def __init__(self, receiver: Receiver, timeout: float) -> None:
        self._receiver = receiver
        self._timeout = timeout
        self._left = timeout

    def renew(self) -> None:
        """Start the time again, for the next request."""
        self._left = self._timeout

    def wait(self, seconds: float, due: Callable[[], str]) -> bool:
        """Wait for the sender for at most ``seconds``; return False if it stayed silent.

        Args:
            seconds: Seconds to wait at most, before other things are done.
            due: Describes what the sender has not sent, for the message of an error.

        Raises:
            DeadlineError: The time of the request is used up.
        """
        began = time.monotonic()
        has_input = self._receiver.wait(min(seconds, self._left))
        self._left -= time.monotonic() - began
        if not has_input and self._left <= 0:
            raise DeadlineError(
                f"{self._receiver.peer} did not send {due()} within {self._timeout:g} s; "
                "it may hang, or be slower than streaming_per_request_timeout allows"
            )
        return has_input
