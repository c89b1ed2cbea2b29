"""The files that this process has mapped: their addresses, and releasing their pages."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import NamedTuple


class Mapped(NamedTuple):
    """A part of a file that is mapped into this process.

    Attributes:
        start: Address of its first byte.
        stop: Address after its last byte.
        offset: Offset of its first byte in the file.
    """

    start: int
    stop: int
    offset: int


def mapped_parts(fd: int) -> list[Mapped]:
    """Return the parts of an open file that this process has mapped, as far as the system tells."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    status = os.fstat(fd)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    parts = []
    for line in lines:
        addresses, _, offset, where, inode, *_ = line.split(maxsplit=5)
        if (where, int(inode)) == (device, status.st_ino):
            start, stop = (int(each, 16) for each in addresses.split("-"))
            parts.append(Mapped(start, stop, int(offset, 16)))
    return parts


def drop_pages(part: Mapped, address: int, length: int) -> None:
    """Release the pages of a range that was read; reading it again reads the file.

    Args:
        part: Mapping that has the range, and to which nothing was written.
        address: Address of the range's first byte.
        length: Length of the range in bytes.
    """
    first = address - address % mmap.PAGESIZE
    last = min(address + length + -(address + length) % mmap.PAGESIZE, part.stop)
    # If the advice is refused the pages stay, and only the reported memory is larger.
    _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)


_libc = ctypes.CDLL(None)
