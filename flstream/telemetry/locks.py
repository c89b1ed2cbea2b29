"""Advisory locks: who holds a file's is the one process that writes to it."""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import suppress


def lock_file(fd: int, patience: float = 0.0) -> bool:
    """Take a file's exclusive lock, which lasts until every copy of its descriptor is closed.

    So it ends with the process that holds it, however that ends.

    Args:
        fd: the file, open for writing.
        patience: seconds to wait for whoever holds the lock.

    Returns:
        Whether it was taken.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return patience > 0 and _lock_within(fd, patience)
    return True


def _lock_within(fd: int, seconds: float) -> bool:
    taken = threading.Event()
    # flock knows no timeout, so a thread waits. It has a descriptor of its own: if nobody waits for
    # it any longer, the lock goes as it comes, when that is closed.
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
