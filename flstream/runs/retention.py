"""Retention of a run's checkpoints: the choice of the kept ones, and removal."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from flstream.runs.run_directory import RunDirectory

Keep = int | Literal["all"]
"""Number of checkpoints to keep besides the best one, or ``"all"``."""

# Bytes of the shortest file that takes long to be freed.
_LONG_BYTES = 16 << 20


class Retention:
    """Removal of the checkpoints that a run does not keep.

    Only regular files with exactly the names of this run's rounds are removed. A link or a folder
    with such a name was not created by the run, and stays.

    Args:
        run: The run directory.
        keep: Number of rounds whose last models stay besides the best one, or ``"all"``.
    """

    def __init__(self, run: RunDirectory, keep: Keep) -> None:
        self._run = run
        self.keep = keep
        self._warned: set[Path] = set()

    def oldest(self, last: int) -> int:
        """Return the oldest kept round once round ``last`` is durable."""
        return 0 if self.keep == "all" else max(last - self.keep + 1, 0)

    def remove(self, paths: Iterable[Path]) -> tuple[bool, list[str]]:
        """Remove files of this run, until one cannot be removed.

        A missing file is ignored. A file that cannot be removed does not fail the run: there is one
        warning about it, and each later call tries again.

        Returns:
            Whether none of them is left, and new warnings.
        """
        warnings: list[str] = []
        return all(self._remove(path, warnings) for path in paths), warnings

    def _remove(self, path: Path, warnings: list[str]) -> bool:
        """Remove a file; return whether it is gone, or else add a warning."""
        try:
            with _opened(path.parent) as folder:
                fd = os.open(path.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                try:
                    if stat.S_ISREG(os.fstat(fd).st_mode):
                        os.unlink(path.name, dir_fd=folder)
                finally:
                    _close(fd)
        except FileNotFoundError:
            return True
        except OSError as error:
            if path not in self._warned:
                self._warned.add(path)
                warnings.append(
                    f"{os.path.relpath(path, self._run.path)} cannot be removed: {error.strerror}; "
                    f"checkpoints.keep = {self.keep} frees no more disk until it can be"
                )
            return False
        return True


def _close(fd: int) -> None:
    """Close a file that may be a removed one; a long one on a thread.

    With the last descriptor goes what the kernel has of the file in memory, which takes 0.2 s for a
    gigabyte. The next round does not wait for that.
    """
    if os.fstat(fd).st_size < _LONG_BYTES:
        os.close(fd)
    else:
        threading.Thread(target=os.close, args=(fd,), name="frees a file").start()


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Open a folder by descriptor, so that no link can redirect work in it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
