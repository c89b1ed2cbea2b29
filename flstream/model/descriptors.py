"""Files by their descriptors: what the system offers for reading and writing them at offsets."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
from pathlib import Path

_SYNC_FILE_RANGE_WRITE = 2  # from <fcntl.h>
_libc = ctypes.CDLL(None, use_errno=True)


def read_at(fd: int, view: memoryview, offset: int) -> int:
    """Fill a view from a file's bytes at ``offset``; return how many there were of them.

    Raises:
        OSError: the system could not read there.
    """
    done = 0
    while done < len(view):
        count = os.preadv(fd, [view[done:]], offset + done)
        if count == 0:
            break
        done += count
    return done


def write_at(fd: int, view: memoryview, offset: int) -> None:
    """Write all of a view at ``offset`` of a file.

    Raises:
        OSError: the disk refused it.
    """
    while len(view):
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count


def begin_writeback(fd: int, offset: int, count: int) -> None:
    """Have the disk begin to write a part of a file, without waiting for it.

    It is a hint: whether the bytes are on disk is for ``fsync`` to say, which then has less to do.
    """
    offsets = ctypes.c_int64(offset), ctypes.c_int64(count)
    _libc.sync_file_range(fd, *offsets, _SYNC_FILE_RANGE_WRITE)


def open_to_write(path: Path, *, keep: bool) -> int:
    """Open a file to be written: the one that is there, if it is to be kept or nobody else's.

    Args:
        path: of the file.
        keep: whether what is in it matters. If not, and somebody else has it open, mapped, or
            under another name, it stays as it is for them, and a new one takes its name.

    Raises:
        OSError: it cannot be opened, or made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o644)
    except PermissionError:  # one that may be removed, but not written
        if keep:
            raise
    else:
        if keep or _is_alone(fd):
            return fd
        os.close(fd)
    path.unlink()
    return os.open(path, flags, 0o644)


def is_ours_alone(path: Path) -> bool:
    """Whether :func:`open_to_write` would write over a file that is there."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return _is_alone(fd)
    finally:
        os.close(fd)


def _is_alone(fd: int) -> bool:
    """Whether a file has no other name, and nobody else has it open or mapped."""
    if os.fstat(fd).st_nlink > 1:
        return False
    try:
        # The kernel grants this lease to none but one who alone has the file. Should somebody come
        # meanwhile it says so with a signal, which is to be one that nobody minds.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:  # also where the file system knows no leases
        return False
    return True


def sync_directory(folder: Path) -> None:
    """Make the names in a folder durable, as ``fsync`` of a file alone does not."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
