"""What the streaming rooms ask of a channel, whatever carries its bytes."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from typing import Protocol

from flstream.transport.splice import Pages


class AbortSignal(Protocol):
    """What calls off whoever waits for a channel."""

    def fileno(self) -> int:
        """The descriptor that becomes readable with the signal."""
        ...

    def is_set(self) -> bool:
        """Whether it was given."""
        ...


class Signal:
    """A flag that any thread can raise, and an :class:`AbortSignal`."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def fileno(self) -> int:
        """The descriptor that becomes readable when the flag is raised."""
        return self._fd

    def set(self) -> None:
        """Raise the flag. It stays up until it is cleared."""
        os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Take the flag down."""
        if self.is_set():
            os.eventfd_read(self._fd)

    def is_set(self) -> bool:
        """Whether the flag is up."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


# The kernel counts milliseconds in 31 bits. A wait of 24 days may as well end there.
_LONGEST_POLL = 2.0**31 - 1


class Deadline:
    """Seconds of waiting that are left. Only time spent waiting for the peer is taken off.

    Args:
        seconds: the time a peer is given; None is for ever.
    """

    def __init__(self, seconds: float | None) -> None:
        self.left = seconds

    def wait(self, poll: select.poll) -> list[tuple[int, int]]:
        """Wait for an event; an empty list says that the time is up."""
        if self.left is None:
            return poll.poll()
        began = time.monotonic()
        # poll() takes whole milliseconds; rounding down would end a wait too early.
        milliseconds = max(self.left, 0.0) * 1e3 + 1
        events = poll.poll(min(milliseconds, _LONGEST_POLL))
        self.left -= time.monotonic() - began
        return events


class Channel(Protocol):
    """A stream of bytes, both ways, to one peer.

    A channel raises :class:`~flstream.errors.ChannelClosedError` once the peer is gone.
    """

    def fileno(self) -> int:
        """The descriptor to select on."""
        ...

    def send_some(self, views: Sequence[memoryview]) -> int:
        """Send what fits without waiting, and return how many bytes that was (maybe 0)."""
        ...

    def lend_some(self, pages: Pages) -> int:
        """Like :meth:`send_some`, for memory that stays as it is until the peer has received it.

        So it need not be copied.
        """
        ...

    def send_file_some(self, fd: int, offset: int, count: int) -> int:
        """Like :meth:`send_some`, for ``count`` bytes of a file at ``offset``."""
        ...

    def receive_some(self, views: Sequence[memoryview]) -> int:
        """Receive what is there without waiting, and return how many bytes (0: nothing yet)."""
        ...

    def send(self, views: Sequence[memoryview], deadline: Deadline) -> None:
        """Send everything, waiting for the peer to make room.

        Raises:
            DeadlineError: the peer made no room in time.
        """
        ...

    def wait(self, seconds: float, abort: AbortSignal | None = None) -> bool:
        """Wait until there is something to receive; False if there is nothing after ``seconds``.

        Raises:
            AbortedError: ``abort`` was raised meanwhile.
        """
        ...

    def receive(
        self, views: Sequence[memoryview], deadline: Deadline, abort: AbortSignal | None = None
    ) -> None:
        """Fill the views, waiting for the peer.

        Raises:
            DeadlineError: the peer did not send them in time.
            AbortedError: ``abort`` was raised meanwhile.
        """
        ...

    def close(self) -> None:
        """Close this end."""
        ...
