"""Sending memory and files without copying them: the kernel hands their pages to the socket.

Between two processes of one machine, a byte is then copied once, by its receiver, and not twice.
Measured on two cores, with digests: memory 6.7 GB/s against 4.3 GB/s with a copy, a file in the
page cache 5.6 GB/s against 2.9 GB/s.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import threading
from collections.abc import Sequence
from contextlib import suppress

from flstream.transport.lending import address_of

# Bytes lent to the kernel at once: the most that a pipe may hold by default.
_PIPE_BYTES = 1 << 20
# The kernel takes at most this many buffers in one call (IOV_MAX on Linux).
_MAX_VIEWS = 1024

_libc = ctypes.CDLL(None, use_errno=True)


class _Buffer(ctypes.Structure):
    """The C structure ``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Pipe:
    """A kernel pipe that pages pass through on their way to a socket; empty between calls."""

    def __init__(self) -> None:
        self.out, self.into = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # Without the permission for larger pipes, less is sent at once.
        with suppress(PermissionError):
            fcntl.fcntl(self.into, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self.null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        for fd in (self.out, self.into, self.null):
            os.close(fd)


class _Pipes(threading.local):
    """The pipe of each thread."""

    pipe: _Pipe | None = None


_pipes = _Pipes()


class Pages:
    """Memory that is sent by its pages instead of a copy.

    The receiver reads the memory itself when it receives the bytes. The memory must not change
    until then, or be taken back: see :mod:`flstream.transport.lending`.

    Args:
        views: Contiguous views, none of them empty.

    Attributes:
        left: Number of bytes still to be sent.
    """

    def __init__(self, views: Sequence[memoryview]) -> None:
        self.left = sum(map(len, views))
        self._views = views  # keeps the memory alive
        # Made once; the kernel is given a part of them at a time.
        self._buffers = (_Buffer * len(views))(*map(_buffer_of, views))
        self._next = 0
        self._taken: list[tuple[int, int]] = []

    def splice_some(self, sock: int) -> int:
        """Send as much as fits.

        Args:
            sock: Descriptor of a non-blocking stream socket.

        Returns:
            The number of bytes that were sent, 0 if the socket is full.

        Raises:
            OSError: The peer is gone.
        """
        pipe = _pipes.pipe
        if pipe is None:
            pipe = _pipes.pipe = _Pipe()
        first = ctypes.byref(self._buffers, self._next * ctypes.sizeof(_Buffer))
        lent = _libc.vmsplice(pipe.into, first, self._count(), os.SPLICE_F_NONBLOCK)
        if lent < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        sent = 0
        try:
            with suppress(BlockingIOError):
                while sent < lent:
                    sent += os.splice(pipe.out, sock, lent - sent, flags=os.SPLICE_F_NONBLOCK)
        finally:
            left = lent - sent
            while left:
                left -= os.splice(pipe.out, pipe.null, left)
        self.advance(sent)
        return sent

    def taken(self) -> list[tuple[int, int]]:
        """Return the addresses of what was sent since the last call, as ranges."""
        taken, self._taken = self._taken, []
        return taken

    def rest(self) -> list[memoryview]:
        """Return the bytes that are still to be sent, in order to copy them instead."""
        views = list(self._views[self._next :])
        if views:
            views[0] = views[0][len(views[0]) - self._buffers[self._next].length :]
        return views

    def advance(self, count: int, *, is_lent: bool = True) -> None:
        """Count ``count`` more bytes as sent, by their pages or copied."""
        self.left -= count
        while count:
            buffer = self._buffers[self._next]
            length = min(count, buffer.length)
            if is_lent:
                self._taken.append((buffer.base, buffer.base + length))
            count -= length
            if length < buffer.length:
                buffer.base += length
                buffer.length -= length
            else:
                self._next += 1

    def _count(self) -> int:
        """Return the number of buffers, from the next on, that a pipe has room for."""
        size, stop = 0, self._next
        most = min(len(self._buffers), self._next + _MAX_VIEWS)
        while stop < most and size < _PIPE_BYTES:
            size += self._buffers[stop].length
            stop += 1
        return stop - self._next


def _buffer_of(view: memoryview) -> _Buffer:
    return _Buffer(address_of(view), len(view))
