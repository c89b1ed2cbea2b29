"""What the child processes of a run see to: where their output goes, and when they have to end."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
from pathlib import Path

# Exit status of a process whose peer is gone: there is nobody left to tell.
_ORPHANED = 3


def redirect_output(log: Path) -> None:
    """Send everything this process prints, from C too, to a log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    # New streams, since those of a process that was started without a stdout do not exist.
    sys.stdout = open(1, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def end_with_peer(pipe: socket.socket) -> None:
    """End this process once the other end of a pipe is gone, whatever its main thread is doing."""
    fd = pipe.fileno()

    def watch() -> None:
        poll = select.poll()
        poll.register(fd, select.POLLRDHUP)
        poll.poll()
        os._exit(_ORPHANED)

    threading.Thread(target=watch, name="peer-watch", daemon=True).start()
