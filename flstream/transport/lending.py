"""Memory that is lent to the peers of sockets, and taken back before it serves another purpose.

What a socket was handed by its pages is read by the peer whenever it likes, also after this end was
closed. So only memory is lent that nothing else has a share in; and before its owner may use it
again, the pages that may be unread are replaced under it: the old ones stay with the kernel alone.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import re
import struct
import termios
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flstream.model.descriptors import FileId, keep_content

PAGE = mmap.PAGESIZE
_MAPS = Path("/proc/self/maps")
# Addresses of what may be read and written, is private, and of no file: of inode 0.
_PRIVATE = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) rw-p [0-9a-f]+ [0-9a-f:]+ 0 *(?:\[heap\]|\[anon.*)?$", re.MULTILINE
)
# Bytes that are replaced at a time at least, if they are of one object.
_BLOCK = 4 << 20
# Memory whose pages could not be replaced.
_kept: list[memoryview] = []
# Loans of a connection beyond which those are looked for that were read.
_MOST_LOANS = 256

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = _libc.mremap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.mremap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
]
_MAYMOVE_FIXED = 1 | 2
_FAILED = ctypes.c_void_p(-1).value


class PrivateMemory:
    """The memory of this process that is its own alone: anonymous, private and writable.

    Args:
        starts: First addresses of ranges, in rising order.
        stops: Addresses after each of them.
    """

    def __init__(self, starts: list[int], stops: list[int]) -> None:
        self._starts = starts
        self._stops = stops

    @classmethod
    def read(cls) -> PrivateMemory:
        """The memory as it is now, which stays true of what is in use; none where that is unknown.

        Mapped files, shared memory, and what a device has mapped are not among it.
        """
        starts: list[int] = []
        stops: list[int] = []
        try:
            maps = _MAPS.read_bytes()
        except OSError:
            return cls([], [])
        for match in _PRIVATE.finditer(maps):
            start, stop = int(match[1], 16), int(match[2], 16)
            if stops and stops[-1] == start:
                stops[-1] = stop
            else:
                starts.append(start)
                stops.append(stop)
        return cls(starts, stops)

    def own_pages(self, view: memoryview) -> tuple[int, int]:
        """Return the range of a view that is on pages of this memory with nothing else on them.

        A page belongs to the object that the view is of, such as an array, if all of it does.

        Args:
            view: Contiguous, and not empty.

        Returns:
            Where it begins and ends in the view; both 0 for none.
        """
        address, (low, high) = address_of(view), _pages_of(view)
        index = bisect_right(self._starts, low) - 1
        if index < 0 or high > self._stops[index]:
            return 0, 0
        start, stop = max(address, low), min(address + len(view), high)
        return (start - address, stop - address) if start < stop else (0, 0)


class Lending(NamedTuple):
    """Bytes that a socket has taken by their pages.

    Attributes:
        ranges: First addresses, and addresses after the last byte, of those in memory.
        view: View of the memory that they are of; None for those of a file.
        file: The file that they are of; None for those in memory.
    """

    ranges: Sequence[tuple[int, int]]
    view: memoryview | None = None
    file: FileId | None = None

    def replace(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges whose pages are to be replaced, rounded outward.

        They are whole blocks, as far as these are of the same object. A process may have no more
        than some ten thousand mappings, and each range that is replaced becomes one.
        """
        if self.view is None:
            return
        low, high = _pages_of(self.view)
        for start, stop in self.ranges:
            yield max(start // _BLOCK * _BLOCK, low), min(-(-stop // _BLOCK) * _BLOCK, high)


class _Loan(NamedTuple):
    """A lending that the peer may not have read.

    Attributes:
        token: Token of the ref that it is of.
        lending: What was lent.
        end: Bytes that the socket had been given with it.
    """

    token: bytes
    lending: Lending
    end: int


class Loans:
    """What one socket was lent, as far as its peer may not have read it.

    The thread that sends and those that take memory back share it; its methods but
    :meth:`take_back` are called with :attr:`lock` held.

    Args:
        fd: Descriptor of the socket.

    Attributes:
        lock: Held while bytes are sent.
    """

    def __init__(self, fd: int) -> None:
        self.lock = threading.Lock()
        self._fd = fd
        self._sent = 0
        self._loans: deque[_Loan] = deque()
        self._ended: set[bytes] = set()

    def sent(self, count: int) -> None:
        """Note that the socket has taken so many bytes."""
        self._sent += count

    def lent(self, token: bytes, lending: Lending) -> None:
        """Note what was among the bytes that the socket took last."""
        self._loans.append(_Loan(token, lending, self._sent))
        if len(self._loans) > _MOST_LOANS:
            read = self._read()
            while self._loans and self._loans[0].end <= read:
                self._loans.popleft()

    def has_ended(self, token: bytes) -> bool:
        """Whether memory of a ref is no longer to be lent."""
        return token in self._ended

    def forget(self, tokens: Iterable[bytes]) -> None:
        """Forget refs of which nothing is being sent any more. The lock need not be held."""
        with self.lock:
            self._ended.difference_update(tokens)

    def ended(self) -> list[bytes]:
        """Return the tokens whose memory was taken back. The lock need not be held."""
        with self.lock:
            return list(self._ended)

    def take_back(self, token: bytes | None = None) -> None:
        """Replace the pages that the peer may still read, so that their owner may use the memory.

        Files of which it may still read some are not overwritten in place any more.

        Args:
            token: Token of the ref that they are of; None for all refs, as the socket is closed.
        """
        with self.lock:
            if token is not None:
                self._ended.add(token)
            wanted = [each for each in self._loans if token in (None, each.token)]
            if not wanted:
                return
            read = self._read()
            unread = [each.lending for each in wanted if each.end > read]
            for file in {each.file for each in unread if each.file is not None}:
                keep_content(file)
            try:
                for start, stop in _joined(unread):
                    replace_pages(start, stop)
            except OSError:
                # The memory is then never given to anything else.
                _kept.extend(each.view for each in unread if each.view is not None)
            self._loans = deque(each for each in self._loans if token not in (None, each.token))

    def _read(self) -> int:
        """Return how many bytes the peer has read at least.

        The kernel counts what waits with what it takes to keep it, so this may be less.
        """
        waiting: int = struct.unpack("i", fcntl.ioctl(self._fd, termios.TIOCOUTQ, bytes(4)))[0]
        return self._sent - waiting


def replace_pages(start: int, stop: int) -> None:
    """Put other pages of the same content in the place of those between two addresses.

    Args:
        start: An address in private anonymous memory.
        stop: A later one, after the last byte. Both are rounded outward to whole pages.

    Raises:
        OSError: The system has no memory for them.
    """
    first, last = start // PAGE * PAGE, -(-stop // PAGE) * PAGE
    length = last - first
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    new = _libc.mmap(None, length, protection, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if new == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    ctypes.memmove(new, first, length)
    if _libc.mremap(new, length, length, _MAYMOVE_FIXED, first) == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def address_of(view: memoryview) -> int:
    """Return the address of a view's first byte."""
    if view.readonly:
        return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def _pages_of(view: memoryview) -> tuple[int, int]:
    """Return the addresses between which pages have nothing but a view's whole object on them."""
    whole = memoryview(view.obj)
    if not whole.contiguous:
        whole = view
    start = address_of(whole)
    return -(-start // PAGE) * PAGE, (start + whole.nbytes) // PAGE * PAGE


def _joined(lendings: Iterable[Lending]) -> list[tuple[int, int]]:
    """Return the ranges of pages that are to be replaced, those that touch as one."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(pages for each in lendings for pages in each.replace()):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    return joined
