"""Files that this process has mapped: where they lie, and how to give their pages back."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import NamedTuple


class Mapped(NamedTuple):
    """A part of a file that is mapped into this process.

    Attributes:
        start: its address.
        stop: the address after it.
        offset: where it begins in the file.
    """

    start: int
    stop: int
    offset: int


def mapped_parts(fd: int) -> list[Mapped]:
    """The parts of an open file that this process has mapped; none where the system hides them."""
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
    """Give the pages of a range back that were read; what is read again comes from the file.

    Args:
        part: the mapping that the range lies in. Nothing of it may have been written to.
        address: of the range's first byte.
        length: of the range.
    """
    first = address - address % mmap.PAGESIZE
    last = min(address + length + -(address + length) % mmap.PAGESIZE, part.stop)
    # Advice may be refused. Then the pages stay, which is no harm but to the memory that is shown.
    _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)


_libc = ctypes.CDLL(None)
