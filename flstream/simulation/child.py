"""Output redirection of a run's child processes, and their end when their peer dies."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from flstream.engines.process_tree import kill_descendants
from flstream.simulation.log_streams import flush_streams, use_log_streams

# Exit status of a process that ended because its peer died.
_ORPHANED = 3


def redirect_output(log: Path) -> None:
    """Redirect stdout and stderr of this process, output of C code included, to a file."""
    _point_at(log)
    use_log_streams()


class SiteLogs:
    """Redirection of this process's output to the log of the site whose task it runs.

    Args:
        own: path of the log for output outside of tasks.
        log_of: function that returns the path of a site's log.
    """

    def __init__(self, own: Path, log_of: Callable[[str], Path]) -> None:
        self._own = own
        self._log_of = log_of
        self._current: str | None = None
        self._libc = ctypes.CDLL(None)
        redirect_output(own)

    def enter(self, site: str | None) -> None:
        """Redirect output to the log of a site, or with None to the process's own log."""
        if site == self._current:
            return
        self._current = site
        flush_streams()
        # C code has its own buffer for output to a file.
        self._libc.fflush(None)
        _point_at(self._own if site is None else self._log_of(site))


def _point_at(log: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        fd = os.open(log, flags, 0o644)
    except FileNotFoundError:  # not checked beforehand: a site's log is opened in every round
        log.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(log, flags, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def end_with_peer(pipe: socket.socket) -> None:
    """End this process once the other end of a socket is closed, by a thread that watches it.

    What it has started ends with it: nobody else is left to end that.
    """
    fd = pipe.fileno()

    def watch() -> None:
        poll = select.poll()
        poll.register(fd, select.POLLRDHUP)
        poll.poll()
        kill_descendants(os.getpid())
        os._exit(_ORPHANED)

    threading.Thread(target=watch, name="peer-watch", daemon=True).start()
