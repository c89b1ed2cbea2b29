"""What the child processes of a run see to: where their output goes, and when they have to end."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

# Exit status of a process whose peer is gone: there is nobody left to tell.
_ORPHANED = 3


def redirect_output(log: Path) -> None:
    """Send everything this process prints, from C too, to a log."""
    _point_at(log)
    # New streams, since those of a process that was started without a stdout do not exist.
    sys.stdout = open(1, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


class SiteLogs:
    """Sends what this process prints to the log of the site that it works for.

    Args:
        own: the log for what is printed between sites.
        log_of: gives the log of a site.
    """

    def __init__(self, own: Path, log_of: Callable[[str], Path]) -> None:
        self._own = own
        self._log_of = log_of
        self._current: str | None = None
        self._libc = ctypes.CDLL(None)
        redirect_output(own)

    def enter(self, site: str | None) -> None:
        """It is this site's turn, or, with None, nobody's."""
        if site == self._current:
            return
        self._current = site
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # What C has printed waits in a buffer of its own when it goes to a file.
        self._libc.fflush(None)
        _point_at(self._own if site is None else self._log_of(site))


def _point_at(log: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        fd = os.open(log, flags, 0o644)
    except FileNotFoundError:  # rare enough not to look first: a site's log is opened every round
        log.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(log, flags, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def end_with_peer(pipe: socket.socket) -> None:
    """End this process once the other end of a pipe is gone, whatever its main thread is doing."""
    fd = pipe.fileno()

    def watch() -> None:
        poll = select.poll()
        poll.register(fd, select.POLLRDHUP)
        poll.poll()
        os._exit(_ORPHANED)

    threading.Thread(target=watch, name="peer-watch", daemon=True).start()
