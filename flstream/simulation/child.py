"""Setup of child processes: signals, output, and an end with their peer.

Inline, where a thread stands for such a process, only its output and its end are set up.
"""

from __future__ import annotations

import ctypes
import io
import os
import select
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TextIO

from flstream.debugging import code_failed
from flstream.engines.processes import kill_descendants
from flstream.errors import ClientError, StreamingError
from flstream.telemetry.events import EVALUATOR

if TYPE_CHECKING:
    from flstream.job import Job
    from flstream.simulation.places import ThreadPlace

# Exit status of a process that ended because its peer died.
_ORPHANED = 3
# The end of a socket whose descriptor is closed in this process is seen by nobody who waits for it.
_LOOK_MILLISECONDS = 1000
_CLOSED = (
    "flstream: this process has lost its channel to the server, as its code has closed descriptors "
    "that it has not opened; leave those open"
)


this_thread = threading.local()
"""Has the place of this thread, where it stands for a process."""


def this_place() -> ThreadPlace | None:
    """Return the place of this thread; None where it stands for no process."""
    return getattr(this_thread, "place", None)


def main(target: str, args: Sequence[Any], log: Path, peer: socket.socket) -> None:
    """Run a process of :class:`~flstream.engines.child_process.ChildProcess`, and end it."""
    ignore_interrupts()
    redirect_output(log)
    end_with_peer(peer)
    with suppress(StreamingError):  # nobody waits for it any more
        try:
            resolve_name(target)(peer, *args)
        except Exception as error:
            code_failed(error)
    if this_place() is None:
        sys.stdout.flush()
        os._exit(0)  # threads of the user's code may never end


def ignore_interrupts() -> None:
    """Leave Ctrl-C to the launcher, which stops this process in order."""
    if this_place() is None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def refuse_breakpoints(site: str, job: Job) -> None:
    """Replace ``breakpoint()``, which needs a terminal, by an error that says how to debug."""
    has_file = (job.folder / "job.conf").exists()
    path = shlex.quote(str(job.folder)) if has_file else "JOB"
    command = f"debug {path} --site {site}"
    if site == EVALUATOR:
        command = f"simulate {path} --engine inline"

    def refuse(*_: object, **__: object) -> None:
        raise ClientError(
            "breakpoint() needs a terminal, which this process does not have; stop there with "
            f"flstream {command}"
        )

    if this_place() is None and "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = refuse


def abandon_in_children(abandon: Callable[[], None]) -> None:
    """Call a function in each child that training code forks from this process."""
    # Inline, the ends of sockets are shut before they are closed, whoever else has them open.
    if this_place() is None:
        os.register_at_fork(after_in_child=abandon)


def redirect_output(log: Path) -> None:
    """Redirect this process's stdout and stderr, C code's too, to a file."""
    if (place := this_place()) is not None:
        place.log_to(log)
        return
    _point_at(log)
    sys.stdout, sys.stderr = _stream(1), _stream(2)


class SiteLogs:
    """Redirection of this process's output to the log of the present task's site."""

    def __init__(self, own: Path, log_of: Callable[[str], Path]) -> None:
        self._own = own
        self._log_of = log_of
        self._current = own
        self._libc = ctypes.CDLL(None)
        redirect_output(own)

    def enter(self, site: str | None) -> None:
        """Redirect output to the log of a site, or with None to the process's own log."""
        log = self._own if site is None else self._log_of(site)
        if log == self._current:
            return
        self._current = log
        if this_place() is not None:
            redirect_output(log)
            return
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # a full disk, which ends no task by itself
                stream.flush()
        # C code has its own buffer for output to a file.
        self._libc.fflush(None)
        _point_at(log)


def _stream(descriptor: int) -> TextIO:
    """Return a stream that writes each line at once.

    It has no buffer of bytes, which would keep what a full disk refused for the next log.
    """
    file = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(file, errors="backslashreplace", line_buffering=True)


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
    """End this process once a socket's other end is closed, by a thread.

    What it has started ends with it: nobody else is left to end that.
    """
    if (place := this_place()) is not None:
        place.peer = pipe
        return
    fd = pipe.fileno()
    identity = os.fstat(fd).st_ino

    def watch() -> None:
        poll = select.poll()
        poll.register(fd, select.POLLRDHUP)
        while not poll.poll(_LOOK_MILLISECONDS):
            if not _is_file(fd, identity):
                print(_CLOSED, file=sys.stderr, flush=True)
                break
        kill_descendants(os.getpid())
        os._exit(_ORPHANED)

    threading.Thread(target=watch, name="peer-watch", daemon=True).start()


def _is_file(fd: int, identity: int) -> bool:
    """Return whether a descriptor is open, and of the file with this number."""
    try:
        return os.fstat(fd).st_ino == identity
    except OSError:
        return False
