"""Advisory file locks: the process with a file's lock is its only writer."""

from __future__ import annotations

import fcntl
import time

# Seconds between two attempts to take a lock that somebody else holds.
_RETRY_SECONDS = 0.02


def lock_file(fd: int, patience: float = 0.0) -> bool:
    """Take a file's exclusive lock, until every copy of its descriptor is closed.

    So the lock ends with the process that holds it, however that ends.

    Args:
        fd: Descriptor of the file, open for writing.
        patience: Seconds to wait for another holder to release the lock.

    Returns:
        Whether the lock was taken.

    Raises:
        OSError: The file system has no locks.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            # flock has no timeout.
            time.sleep(min(_RETRY_SECONDS, patience))
        else:
            return True
