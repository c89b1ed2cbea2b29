"""One end of a Unix socket pair or a TCP connection, and the waiting for it.

A channel never blocks in the kernel, so that every wait has a deadline, and a flag can end it.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import termios
import time
from array import array
from collections.abc import Sequence
from typing import Protocol

from flstream.debugging import waiting
from flstream.errors import AbortedError, ChannelClosedError, DeadlineError

# The kernel takes at most this many buffers in one call (IOV_MAX on Linux).
_MAX_VIEWS = 1024
# The kernel makes it twice that, where net.core.wmem_max allows it; by default that is 208 KiB.
_SOCKET_BUFFER = 4 << 20
SMALL_BUFFER = 64 << 10
"""Bytes that a socket holds beside an emulated link: what waits there is in front of any answer."""

# The kernel counts milliseconds in 31 bits, so a wait ends after 24 days at the latest.
_LONGEST_POLL = 2.0**31 - 1
_CREDENTIALS = struct.Struct("3i")  # pid, uid and gid
# Room for the pid of who has sent something, and for one descriptor.
_BESIDE = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(array("i").itemsize)
# A dead link without traffic is known after 4 + 3 * 2 seconds. There is no TCP_USER_TIMEOUT: it
# would also end a sound connection whose receiver takes nothing for a while.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


class AbortSignal(Protocol):
    """A flag that any thread can set, and that ends waiting for a channel."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the flag is set."""
        ...

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        ...

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


class Deadline:
    """Limit on the seconds of waiting for a peer; other time does not count.

    Args:
        seconds: Seconds of waiting; None is without limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self.left = seconds

    def poll(self, poll: select.poll, most: float | None = None) -> bool:
        """Wait for an event, ``most`` seconds at most; return whether one came."""
        limits = [limit for limit in (self.left, most) if limit is not None]
        if not limits:
            with waiting():
                return bool(poll.poll())
        # poll() takes whole milliseconds; rounding down would end a wait too early.
        milliseconds = min(limits) * 1e3 + 1 if min(limits) > 0 else 0
        with waiting():
            began = time.monotonic()
            events = poll.poll(min(milliseconds, _LONGEST_POLL))
            if self.left is not None:
                self.left -= time.monotonic() - began
        return bool(events)


class Channel:
    """One end of a stream of bytes to and from one peer.

    Its methods raise :class:`~flstream.errors.ChannelClosedError` once the peer is gone.

    Args:
        sock: Socket of this end.
        peer: Name of the process at the other end.
        direct: Whether the peer is a process of the same run on this machine, which may be handed
            files, and told where in memory bytes lie, to read them by itself.
        beats: Whether the peer may be gone without a sign, as over a network, so that either side
            says now and then that it lives; and may come back on another channel.
        buffer: Bytes that a Unix socket holds until the peer reads them.

    Attributes:
        peer_pid: Process that has sent what was received last, as the kernel says; None where that
            is not asked, which only a direct channel does.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        *,
        direct: bool = False,
        beats: bool = False,
        buffer: int = _SOCKET_BUFFER,
    ) -> None:
        self.peer = peer
        self.direct = direct
        self.beats = beats
        self.peer_pid: int | None = None
        self._descriptors: list[int] = []  # of the file that the peer has handed over last
        self._socket = sock
        sock.setblocking(False)
        if sock.family == socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, direct)
        else:
            for level, option, value in _KEEPALIVE:
                sock.setsockopt(level, option, value)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def send_some(self, views: Sequence[memoryview], descriptors: Sequence[int] = ()) -> int:
        """Send bytes that fit without waiting, files beside the first; return their count."""
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))]
        try:
            return self._socket.sendmsg(views[:_MAX_VIEWS], beside if descriptors else ())
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._gone() from error

    def receive_some(self, views: Sequence[memoryview]) -> int:
        """Receive arrived bytes without waiting; return their count, 0 for none yet."""
        try:
            count, beside, _, _ = self._socket.recvmsg_into(
                views[:_MAX_VIEWS], _BESIDE, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._gone() from error
        for _, kind, data in beside:
            if kind == socket.SCM_CREDENTIALS:
                self.peer_pid = _CREDENTIALS.unpack(data)[0]
            elif kind == socket.SCM_RIGHTS:
                self._descriptors += array("i", data)
                while len(self._descriptors) > 1:  # no message brings two
                    os.close(self._descriptors.pop(0))
        if count == 0:
            raise self._gone()
        return count

    @property
    def unread(self) -> int:
        """Number of arrived bytes that were not received."""
        return self._count(termios.FIONREAD)

    @property
    def untaken(self) -> int:
        """Number of sent bytes that the peer has not taken, by the kernel's count."""
        return self._count(termios.TIOCOUTQ)

    def _count(self, what: int) -> int:
        data = fcntl.ioctl(self.fileno(), what, bytes(4))
        return int(struct.unpack("i", data)[0])

    def send(self, views: Sequence[memoryview], deadline: Deadline) -> None:
        """Send everything, waiting for the peer to make room."""
        buffers = [view for view in views if len(view)]
        while buffers:
            count = self.send_some(buffers)
            if count:
                buffers = advance(buffers, count)
            elif not self.wait(deadline, events=select.POLLOUT):
                raise DeadlineError(f"{self.peer} did not take a message in the time it was given")

    def receive(
        self, views: Sequence[memoryview], deadline: Deadline, abort: AbortSignal | None = None
    ) -> None:
        """Fill the views, waiting for the peer."""
        buffers = [view for view in views if len(view)]
        while buffers:
            buffers = advance(buffers, self.receive_any(buffers, deadline, abort))

    def receive_any(
        self, views: Sequence[memoryview], deadline: Deadline, abort: AbortSignal | None = None
    ) -> int:
        """Receive arrived bytes, waiting for the peer if there are none; return their count."""
        while not (count := self.receive_some(views)):
            if not self.wait(deadline, *filter(None, [abort])):
                raise DeadlineError(f"{self.peer} did not answer in the time it was given")
        return count

    def wait(
        self,
        deadline: Deadline,
        *aborts: AbortSignal,
        most: float | None = None,
        events: int = select.POLLIN,
    ) -> bool:
        """Wait until bytes can be received, or sent.

        Args:
            deadline: Seconds that are left to wait, which this takes from.
            aborts: Flags that end the waiting.
            most: Seconds to wait now at most; None is without limit.
            events: Events to wait for: ``POLLIN``, ``POLLOUT`` or both.

        Returns:
            Whether there is something to do; False if the time is over.

        Raises:
            AbortedError: A flag is set.
        """
        fd, poll = self.fileno(), select.poll()
        if fd < 0:
            raise self._gone()
        poll.register(fd, events)
        for abort in aborts:
            poll.register(abort.fileno(), select.POLLIN)
        is_ready = deadline.poll(poll, most)
        self.expect_on(*aborts)
        return is_ready

    def expect_on(self, *aborts: AbortSignal) -> None:
        """Check flags, also without waiting."""
        if any(abort.is_set() for abort in aborts):
            raise AbortedError(f"the transfer with {self.peer} was called off")

    def _gone(self) -> ChannelClosedError:
        return ChannelClosedError(f"{self.peer} closed the channel; its process has ended or died")

    def take_descriptor(self) -> int:
        """Return the descriptor of a file from the peer; the caller closes it."""
        if not self._descriptors:
            raise ChannelClosedError(
                f"{self.peer} handed no descriptor over; its process has ended"
            )
        return self._descriptors.pop()

    def detach(self) -> socket.socket:
        """Return the socket, for another process; this object is then of no use."""
        return socket.socket(fileno=self._socket.detach())

    def shut(self) -> None:
        """End the stream both ways, and wake its waiters, in this process too."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # it has ended
            return

    def close(self) -> None:
        """Close this end; the peer sees the end of the stream."""
        while self._descriptors:
            os.close(self._descriptors.pop())
        self._socket.close()


def is_hung_up(*socks: socket.socket) -> bool:
    """Return whether one of several sockets is closed, at either end."""
    poll = select.poll()
    try:
        for sock in socks:
            poll.register(sock, select.POLLRDHUP)
    except ValueError:  # at this end
        return True
    return bool(poll.poll(0))


def pipe(first: str, second: str, *, direct: bool = False) -> tuple[Channel, Channel]:
    """Make two connected channels, for the processes ``first`` and ``second``.

    Args:
        first: Name of the process at one end.
        second: Name of the process at the other end.
        direct: Whether each lets the other read its files and memory: see :class:`Channel`.
    """
    ours, theirs = socket.socketpair()
    return Channel(ours, peer=second, direct=direct), Channel(theirs, peer=first, direct=direct)


def advance(views: Sequence[memoryview], count: int) -> list[memoryview]:
    """Return consecutive views without their first ``count`` bytes."""
    return split(views, count)[1]


def split(views: Sequence[memoryview], count: int) -> tuple[list[memoryview], list[memoryview]]:
    """Return the first ``count`` bytes of consecutive views, and the rest."""
    index = 0
    while index < len(views) and count >= len(views[index]):
        count -= len(views[index])
        index += 1
    first, rest = list(views[:index]), list(views[index:])
    if count:
        first.append(rest[0][:count])
        rest[0] = rest[0][count:]
    return first, rest
