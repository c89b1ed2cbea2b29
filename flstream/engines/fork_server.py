"""The fork server: a process without threads that makes imports and forks others.

Its owner holds the other end of a socket of packets. A packet with descriptors asks for a process:
they are of the pickled call, of a socket for answers about that process, and of the call's sockets.
The answers are the process's pid, with a pidfd, when it was forked, and its exit code at its end.
"""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
import os
import pickle
import pkgutil
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from multiprocessing import util
from pathlib import Path
from typing import IO, Any

from flstream.engines.processes import kill_descendants
from flstream.telemetry import MEMORY_GROUP
from flstream.telemetry.events import SERVER

ANSWER = struct.Struct("<q")
"""The pid, or minus the error's number; then the exit code, or minus that of the signal."""
MOST_DESCRIPTORS = 64
"""Most descriptors in one packet."""

# From Linux's prctl.h.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None)


class CallPickler(pickle.Pickler):
    """Pickler of a call, which lists the sockets among the arguments instead."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.sockets: list[socket.socket] = []

    def persistent_id(self, obj: Any) -> int | None:
        """Return the number of a socket; None for any other object."""
        if not isinstance(obj, socket.socket):
            return None
        self.sockets.append(obj)
        return len(self.sockets) - 1


class _CallUnpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], descriptors: list[int]) -> None:
        super().__init__(file)
        self._descriptors = descriptors

    def persistent_load(self, pid: int) -> socket.socket:
        return socket.socket(fileno=self._descriptors[pid])


def temporary_prefix(fork_server: int) -> str:
    """Return the prefix of temporary folders that a fork server removes at its end.

    Args:
        fork_server: Its pid, which is that of the parent of a process that it has forked.
    """
    return f"flstream-{fork_server}-"


def adopt_orphans() -> None:
    """Make processes that descendants leave behind children of this process."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int) -> None:
    """End this process with its parent, which may have ended already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def serve(owner: socket.socket) -> None:
    """Fork processes for the owner until it is gone; then kill all they have started."""
    adopt_orphans()
    woken, waker = socket.socketpair()
    woken.setblocking(False)
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # only what has a handler wakes
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    own, answers = [owner, woken, waker], dict[int, socket.socket]()
    poll = select.poll()
    poll.register(owner, select.POLLIN)
    poll.register(woken, select.POLLIN)
    with suppress(ConnectionError):
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if woken.fileno() in ready:
                woken.recv(1 << 10)
                _reap(answers)
            if owner.fileno() in ready:
                _, descriptors, _, _ = socket.recv_fds(owner, 1, MOST_DESCRIPTORS)
                if not descriptors:
                    raise ConnectionError("the owner is gone")
                for descriptor in descriptors:
                    os.set_inheritable(descriptor, False)
                _fork(own, answers, descriptors)
    kill_descendants(os.getpid())
    for folder in Path(tempfile.gettempdir()).glob(f"{temporary_prefix(os.getpid())}*"):
        shutil.rmtree(folder, ignore_errors=True)
    # Its group has also what training code left behind.
    os.killpg(0, signal.SIGKILL)


def _fork(
    own: list[socket.socket], answers: dict[int, socket.socket], descriptors: list[int]
) -> None:
    parent, answer = os.getpid(), socket.socket(fileno=descriptors.pop(1))
    try:
        if not (pid := os.fork()):
            with suppress(BaseException):  # whatever it is, no child goes on here
                os._exit(_run(parent, [*own, answer, *answers.values()], descriptors))
            os._exit(1)
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        with answer, suppress(OSError):  # an owner that is gone ends all soon
            answer.send(ANSWER.pack(-(error.errno or errno.EAGAIN)))
        return
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    answers[pid] = answer
    with suppress(OSError):
        socket.send_fds(answer, [ANSWER.pack(pid)], [pidfd])
    os.close(pidfd)


def _reap(answers: dict[int, socket.socket]) -> None:
    """Take the exit codes of all children that have ended; send the requested ones."""
    with suppress(ChildProcessError):  # there is no child left
        while (end := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = end
            if (answer := answers.pop(pid, None)) is not None:
                with answer, suppress(OSError):
                    answer.send(ANSWER.pack(os.waitstatus_to_exitcode(status)))


def _run(parent: int, own: list[socket.socket], descriptors: list[int]) -> int:
    """Run the call of a new process, and return its exit code."""
    end_with_parent(parent)
    os.setpgid(0, 0)  # a signal that its code sends to its own group meets nobody else
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for sock in own:
        sock.close()
    call, *sockets = descriptors
    try:
        with open(call, "rb") as file:
            name, target, arguments = _CallUnpickler(file, sockets).load()
        multiprocessing.current_process().name = name
        if MEMORY_GROUP in os.environ and name != SERVER:
            # Where the kernel has to kill a process, those live on that can say what has happened.
            with suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text("1000")
        pkgutil.resolve_name(target)(*arguments)
        return 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        # As multiprocessing ends a process: without taking the interpreter apart.
        threading._shutdown()  # type: ignore[attr-defined]
        util._exit_function()  # type: ignore[attr-defined]
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
