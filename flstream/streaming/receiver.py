"""The receiver's end of a channel, and the time that it waits."""

from __future__ import annotations

import time
from collections.abc import Callable

from flstream.errors import AbortedError, DeadlineError
from flstream.streaming.limits import DEFAULT_LIMITS, Limits
from flstream.streaming.packets import PacketReader
from flstream.streaming.settings import StreamSettings as StreamSettings
from flstream.streaming.wire import Request, pack_message
from flstream.transport.channel import AbortSignal, Channel, Deadline


class Receiver:
    """The receiving end of a channel, with a download service at the other end.

    A single thread uses it at a time, for one download after another.

    Attributes:
        peer: Name of the sender.
        limits: What the sender may cause.
        packets: The packets that arrive.

    Args:
        channel: Channel that carries the packets.
        peer: Name of the sender, for messages.
        abort: Signal that cancels the download.
        limits: What the sender may cause.
    """

    def __init__(
        self,
        channel: Channel,
        peer: str,
        abort: AbortSignal | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.peer = peer
        self.limits = limits
        self.packets = PacketReader(channel, peer, self._expect_no_abort)
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

    def _expect_no_abort(self) -> None:
        """Look at the signal also while bytes keep coming.

        Raises:
            AbortedError: It was set.
        """
        if self._abort is not None and self._abort.is_set():
            raise AbortedError(f"the transfer with {self.peer} was called off")


class Patience:
    """The time of one request, which passes while the sender is listened to.

    What is done with the bytes that came does not count. Use it as a context manager around
    receiving.

    Args:
        receiver: Receiver whose channel is waited for.
        timeout: Seconds of a request.
    """

    def __init__(self, receiver: Receiver, timeout: float) -> None:
        self._receiver = receiver
        self._timeout = timeout
        self._left = timeout
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._left = self._now_left

    def renew(self) -> None:
        """Start the time again, for the next request."""
        self._left = self._timeout
        self._began = time.monotonic()

    def expect_left(self, due: Callable[[], str]) -> None:
        """Give up a sender that has sent nothing of use in time, however much it has sent.

        Args:
            due: Describes what the sender has not sent, for the message of an error.

        Raises:
            DeadlineError: The time of the request is used up.
        """
        if self._now_left <= 0:
            raise DeadlineError(
                f"{self._receiver.peer} did not send {due()} within {self._timeout:g} s; "
                "it may hang, or be slower than streaming_per_request_timeout allows"
            )

    def wait(self, seconds: float, due: Callable[[], str]) -> bool:
        """Wait for the sender for at most ``seconds``; return False if it stayed silent.

        Args:
            seconds: Seconds to wait at most, before other things are done.
            due: Describes what the sender has not sent, for the message of an error.

        Raises:
            DeadlineError: The time of the request is used up.
        """
        has_input = self._receiver.wait(min(seconds, max(self._now_left, 0.0)))
        if not has_input:
            self.expect_left(due)
        return has_input

    @property
    def _now_left(self) -> float:
        return self._left - (time.monotonic() - self._began)
