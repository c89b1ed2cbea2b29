"""Advisory file locks: the process that holds a file's lock is the only one that writes to it."""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import suppress


def lock_file(fd: int, patience: float = 0.0) -> bool:
    """Take a file's exclusive lock, which lasts until every copy of its descriptor is closed.

    So the lock ends with the process that holds it, however that ends.

    Args:
        fd: Descriptor of the file, open for writing.
        patience: Seconds to wait for another holder to release the lock.

    Returns:
        Whether the lock was taken.

    Raises:
        OSError: The file system has no locks.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return patience > 0 and _lock_within(fd, patience)
    return True


def _lock_within(fd: int, seconds: float) -> bool:
    taken = threading.Event()
    # flock has no timeout, so a thread waits, with a descriptor of its own: if the caller gave up,
    # the lock is released as soon as it is taken, when that descriptor is closed.
    duplicate = os.dup(fd)

    def wait() -> None:
        try:
            with suppress(OSError):
                fcntl.flock(duplicate, fcntl.LOCK_EX)
                taken.set()
        finally:
            os.close(duplicate)

    threading.Thread(target=wait, name="lock-wait", daemon=True).start()
    return taken.wait(seconds)
