"""Reading and writing files at offsets, through their descriptors."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from pathlib import Path

# Bytes written between two requests to the disk to begin writing. Where a run has a memory limit,
# all files have such requests: version 1 of control groups slows nobody down who fills a group with
# pages that the disk has yet to write. Else those that are not durable have none: with 1 GiB at two
# sites that keep it in files, a round takes 4.0 s, and 4.8 s with them.
WRITEBACK_BYTES = 32 << 20
"""Bytes written between two calls of :func:`begin_writeback`."""

_SYNC_FILE_RANGE_WRITE = 2  # from <fcntl.h>
_libc = ctypes.CDLL(None, use_errno=True)


def read_at(fd: int, view: memoryview, offset: int) -> int:
    """Fill a view with a file's bytes, and return how many it has there."""
    done = 0
    while done < len(view):
        count = os.preadv(fd, [view[done:]], offset + done)
        if count == 0:
            break
        done += count
    return done


def write_at(fd: int, view: memoryview, offset: int) -> None:
    """Write all of a view at ``offset`` of a file."""
    while len(view):
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count


def begin_writeback(fd: int) -> None:
    """Ask the disk to begin to write a file's bytes, without waiting for it."""
    whole = ctypes.c_int64(0), ctypes.c_int64(0)  # 0 bytes stand for all up to the end
    _libc.sync_file_range(fd, *whole, _SYNC_FILE_RANGE_WRITE)


def open_to_write(path: Path, *, keep: bool) -> int:
    """Open or create a file that this descriptor alone writes.

    Where the content of an existing file is not to be kept, or it has another name, or a link leads
    to it, a new file takes its name; whoever has the old one open keeps that.

    Raises:
        OSError: The file cannot be opened or created, or is being written through another
            descriptor that this function returned, in any process.
    """
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            is_link = error.errno == errno.ELOOP  # to somebody else's file
            # A file may be removed, but not written.
            if not (is_link or (isinstance(error, PermissionError) and not keep)):
                raise
            path.unlink()
            continue
        try:
            _lock(fd)
            if _is_named(fd, path):
                status = os.fstat(fd)
                if status.st_nlink == 1 and (keep or not status.st_size):
                    return fd
                path.unlink()
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _lock(fd: int) -> None:
    """Lock a file for this descriptor's writes, until the descriptor is closed."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        sentence = "someone else is writing it now; wait for that to end, or choose another path"
        raise OSError(error.errno, sentence) from error
    except OSError as error:  # a file system without locks, such as some that come over a network
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise


def _is_named(fd: int, path: Path) -> bool:
    """Return whether a path still names an open file, which its writer may have moved."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def sync_directory(folder: Path) -> None:
    """Make the names in a folder durable, which a file's ``fsync`` does not."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
