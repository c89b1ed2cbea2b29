"""The protocol of a channel, whatever carries its bytes, and waiting with deadlines and signals."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from typing import Protocol

from flstream.debugging import waiting
from flstream.errors import AbortedError
from flstream.transport.splice import Pages


class AbortSignal(Protocol):
    """A flag that ends waiting for a channel."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the flag is set."""
        ...

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        ...


class StopSignal(AbortSignal, Protocol):
    """A flag that ends a run, and that any thread can set."""

    def set(self) -> None:
        """Set the flag."""
        ...


class Signal:
    """A flag that any thread can set; an :class:`AbortSignal`."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the flag is set."""
        return self._fd

    def set(self) -> None:
        """Set the flag, until it is cleared."""
        os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Clear the flag."""
        if self.is_set():
            os.eventfd_read(self._fd)

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        poll = select.poll()  # one of its own: threads may not share it while they ask
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class AnySignal:
    """A flag that is set if one of others is; an :class:`AbortSignal`."""

    def __init__(self, *signals: AbortSignal) -> None:
        self._signals = signals
        self._epoll = select.epoll()
        for each in signals:
            self._epoll.register(each.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a flag is set."""
        return self._epoll.fileno()

    def is_set(self) -> bool:
        """Return whether a flag is set."""
        return any(each.is_set() for each in self._signals)


# The kernel counts milliseconds in 31 bits, so a wait ends after 24 days at the latest.
_LONGEST_POLL = 2.0**31 - 1


class Deadline:
    """A limit on the seconds spent waiting for a peer; other time does not count.

    Args:
        seconds: Seconds of waiting; None is without limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self.left = seconds

    def wait(self, poll: select.poll) -> list[tuple[int, int]]:
        """Wait for an event; return an empty list once the time is used up."""
        if self.left is None:
            with waiting():
                return poll.poll()
        # poll() takes whole milliseconds; rounding down would end a wait too early.
        milliseconds = max(self.left, 0.0) * 1e3 + 1
        with waiting():
            began = time.monotonic()
            events = poll.poll(min(milliseconds, _LONGEST_POLL))
            self.left -= time.monotonic() - began
        return events


def wait_readable(fd: int, deadline: Deadline, abort: AbortSignal | None, peer: str) -> bool:
    """Wait until a descriptor can be read; return False once the time is used up.

    Raises:
        AbortedError: ``abort`` was set meanwhile; the message names the peer.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if abort is not None:
        poll.register(abort.fileno(), select.POLLIN)
    events = deadline.wait(poll)
    if abort is not None and abort.is_set():
        raise AbortedError(f"the transfer with {peer} was called off")
    return bool(events)


class Channel(Protocol):
    """A stream of bytes to and from one peer.

    Its methods raise :class:`~flstream.errors.ChannelClosedError` once the peer is gone.

    Attributes:
        lends: Whether memory is handed to the peer by its pages instead of copied.
        beats: Whether the peer may be gone without a sign, so that either side says now and then
            that it lives; and may come back on another channel.
    """

    lends: bool
    beats: bool

    def fileno(self) -> int:
        """Return the descriptor to select on."""
        ...

    def send_some(self, views: Sequence[memoryview], *, more: bool = False) -> int:
        """Send as much as fits without waiting; return the number of bytes, which may be 0.

        Where ``more`` follows at once, these bytes need not travel before it comes.
        """
        ...

    def lend_some(self, pages: Pages) -> int:
        """Send as :meth:`send_some` does, from memory that does not change until it is received.

        Such memory need not be copied.
        """
        ...

    def send_file_some(self, fd: int, offset: int, count: int, *, immutable: bool) -> int:
        """Send as :meth:`send_some` does, from ``count`` bytes of a file at ``offset``.

        Nobody writes into a file that is immutable, so that its pages need not be copied.
        """
        ...

    def receive_some(self, views: Sequence[memoryview]) -> int:
        """Receive what has arrived, without waiting; return the number of bytes, 0 for none yet."""
        ...

    def send(self, views: Sequence[memoryview], deadline: Deadline) -> None:
        """Send everything, waiting for the peer to make room.

        Raises:
            DeadlineError: The peer made no room in time.
        """
        ...

    def wait(self, seconds: float, abort: AbortSignal | None = None) -> bool:
        """Wait for bytes to be received; return False if there are none after ``seconds``.

        Raises:
            AbortedError: ``abort`` was set meanwhile.
        """
        ...

    def receive(
        self, views: Sequence[memoryview], deadline: Deadline, abort: AbortSignal | None = None
    ) -> None:
        """Fill the views, waiting for the peer.

        Raises:
            DeadlineError: The peer did not send the bytes in time.
            AbortedError: ``abort`` was set meanwhile.
        """
        ...

    def close(self) -> None:
        """Close this end."""
        ...
