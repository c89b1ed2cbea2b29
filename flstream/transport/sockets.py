"""Channels over sockets: a Unix socket pair, as ``multiprocessing.Pipe()`` makes it, or TCP."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from collections.abc import Sequence

from flstream.errors import ChannelClosedError, DeadlineError
from flstream.transport.channel import AbortSignal, Deadline, wait_readable
from flstream.transport.splice import Pages
from flstream.transport.views import advance

# The kernel takes at most this many buffers in one call (IOV_MAX on Linux).
_MAX_VIEWS = 1024
# The kernel makes it twice that, where net.core.wmem_max allows it; by default that is 208 KiB.
# Some chunks of the default size then wait whole for their reader: measured with two receivers,
# 1.08 times as fast as half of it. Most bytes are lent, not copied, and none of them are part of
# either process's RSS.
_SOCKET_BUFFER = 4 << 20
SMALL_BUFFER = 64 << 10
"""Bytes that a socket holds beside an emulated link: what waits there is in front of any answer."""

# Bytes that are read from a file at a time where its pages cannot be handed over.
_PIECE_BYTES = 1 << 20


class _Room(threading.local):
    """Memory of each thread for pieces of files."""

    def __init__(self) -> None:
        self.piece = memoryview(bytearray(_PIECE_BYTES))


_room = _Room()
_ZEROS = memoryview(bytes(64 << 10))
# Error numbers of a kernel that cannot hand over pages, or does not allow it.
_CANNOT = (errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP)


class SocketChannel:
    """One end of a socket. It never blocks in the kernel, so that every wait has a deadline.

    Args:
        sock: Socket of this end.
        peer: Name of the process at the other end.
        lends: Whether memory and files are handed to the peer by their pages instead of copied,
            which is faster. A peer that does not keep to the rules can hold on to such pages with
            splice(2), and read later what came to lie there. So it must be trusted as much as one
            that may read this process's memory.
        lends_files: Whether the pages of files are handed over that nobody changes.
        beats: Whether the peer may be gone without a sign, as over a network.
        buffer: Bytes that a Unix socket holds until the peer reads them.

    Attributes:
        peer: Name of the process at the other end, for messages of errors.
        lends: Whether memory is handed over, which the system may not support.
        beats: As given.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        *,
        lends: bool = False,
        lends_files: bool = False,
        beats: bool = False,
        buffer: int = _SOCKET_BUFFER,
    ) -> None:
        self.peer = peer
        self.beats = beats
        self._socket = sock
        self.lends = lends
        self._sends_files = lends_files
        sock.setblocking(False)
        if sock.family == socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(sock, select.POLLOUT)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def send_some(self, views: Sequence[memoryview], *, more: bool = False) -> int:
        """Send as much as fits without waiting."""
        try:
            return self._socket.sendmsg(views[:_MAX_VIEWS], (), socket.MSG_MORE if more else 0)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._gone() from error

    def lend_some(self, pages: Pages) -> int:
        """Send as much as fits without waiting, by its pages where the system supports that."""
        if self.lends:
            try:
                return pages.splice_some(self.fileno())
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise self._gone() from error
                self.lends = False
        count = self.send_some(pages.rest())
        pages.advance(count, is_lent=False)
        return count

    def send_file_some(self, fd: int, offset: int, count: int, *, immutable: bool) -> int:
        """Send as much of a file as fits without waiting, by its pages where the system can."""
        if self.lends or (self._sends_files and immutable):
            try:
                sent = os.sendfile(self.fileno(), fd, offset, count)
            except BlockingIOError:
                return 0
            except ConnectionError as error:
                raise self._gone() from error
            except OSError as error:
                sent = 0
                if error.errno in _CANNOT:
                    self.lends = self._sends_files = False
            if sent:
                return sent
        piece = _room.piece[:count]
        try:
            there = os.preadv(fd, [piece], offset)
        except OSError:
            there = 0
        # Bytes that cannot be read are sent as zeros, which the receiver detects by the digest.
        return self.send_some([piece[:there] if there else _ZEROS[:count]])

    def receive_some(self, views: Sequence[memoryview]) -> int:
        """Receive what has arrived, without waiting."""
        try:
            count = self._socket.recvmsg_into(views[:_MAX_VIEWS])[0]
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._gone() from error
        if count == 0:
            raise self._gone()
        return count

    def send(self, views: Sequence[memoryview], deadline: Deadline) -> None:
        """Send everything, waiting for the peer to make room."""
        left = [view for view in views if len(view)]
        while left:
            count = self.send_some(left)
            if count:
                left = advance(left, count)
            elif not deadline.wait(self._writable):
                raise DeadlineError(f"{self.peer} did not take a message in the time it was given")

    def receive(
        self, views: Sequence[memoryview], deadline: Deadline, abort: AbortSignal | None = None
    ) -> None:
        """Fill the views, waiting for the peer."""
        left = [view for view in views if len(view)]
        while left:
            count = self.receive_some(left)
            if count:
                left = advance(left, count)
            elif not self._wait(deadline, abort):
                raise DeadlineError(f"{self.peer} did not answer in the time it was given")

    def wait(self, seconds: float, abort: AbortSignal | None = None) -> bool:
        """Wait for bytes to be received."""
        return self._wait(Deadline(seconds), abort)

    def _wait(self, deadline: Deadline, abort: AbortSignal | None) -> bool:
        if self._socket.fileno() < 0:
            raise self._gone()
        if abort is None:
            return bool(deadline.wait(self._readable))
        return wait_readable(self._socket.fileno(), deadline, abort, self.peer)

    def _gone(self) -> ChannelClosedError:
        return ChannelClosedError(f"{self.peer} closed the channel; its process has ended or died")

    def detach(self) -> socket.socket:
        """Return the socket, for another process; this object is of no use any more."""
        return socket.socket(fileno=self._socket.detach())

    def close(self) -> None:
        """Close this end; the peer sees the end of the stream."""
        self._socket.close()


def is_hung_up(*socks: socket.socket) -> bool:
    """Whether one of several sockets is closed, at this end or the other."""
    poll = select.poll()
    try:
        for each in socks:
            poll.register(each, select.POLLRDHUP)
    except ValueError:  # at this end
        return True
    return bool(poll.poll(0))


def pipe(first: str, second: str, *, lends: bool = False) -> tuple[SocketChannel, SocketChannel]:
    """Make two connected channels: the end of the process ``first``, and that of ``second``.

    Args:
        first: Name of the process at one end.
        second: Name of the process at the other end.
        lends: Whether each trusts the other with its pages: see :class:`SocketChannel`.
    """
    ours, theirs = socket.socketpair()
    return (
        SocketChannel(ours, peer=second, lends=lends),
        SocketChannel(theirs, peer=first, lends=lends),
    )
