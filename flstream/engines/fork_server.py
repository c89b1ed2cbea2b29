"""The fork server: a process without threads that has made its imports, and forks others.

Its owner holds the other end of a socket of packets. A packet with descriptors asks for a process;
the first descriptor is of the pickled call, the others are those of the call's sockets. Answers are
a process's pid with a pidfd when it was forked, and its pid with its exit code when it has ended.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import pkgutil
import selectors
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

from flstream.engines.process_tree import kill_descendants

REPLY = struct.Struct("<?qq")
"""Whether a process has ended, its pid, and its exit code, or minus the signal that killed it.

Of one that could not be forked, 0 and the number of the error.
"""
MOST_DESCRIPTORS = 64
"""Most descriptors in one packet."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class CallPickler(pickle.Pickler):
    """Pickles a call, and lists the sockets among its arguments instead of pickling them."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.sockets: list[socket.socket] = []

    def persistent_id(self, obj: Any) -> int | None:
        """Return the number of a socket; None for all else."""
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


def serve(owner: socket.socket) -> None:
    """Fork processes for the owner until it is gone; then kill them, and all they have started."""
    with selectors.DefaultSelector() as selector:
        selector.register(owner, selectors.EVENT_READ)
        with suppress(ConnectionError):
            while True:
                for key, _ in selector.select():
                    if key.data is not None:
                        _reap(owner, selector, key.fd, key.data)
                        continue
                    _, descriptors, _, _ = socket.recv_fds(owner, 1, MOST_DESCRIPTORS)
                    if not descriptors:
                        raise ConnectionError("the owner is gone")
                    for descriptor in descriptors:
                        os.set_inheritable(descriptor, False)
                    _fork(owner, selector, descriptors)
    kill_descendants(os.getpid())
    for folder in Path(tempfile.gettempdir()).glob(f"{temporary_prefix(os.getpid())}*"):
        shutil.rmtree(folder, ignore_errors=True)
    # Its group has also what training code left behind.
    os.killpg(0, signal.SIGKILL)


def _fork(owner: socket.socket, selector: selectors.BaseSelector, descriptors: list[int]) -> None:
    own = os.getpid()
    try:
        if not (pid := os.fork()):
            with suppress(BaseException):  # whatever it is, no child goes on here
                os._exit(_run(own, owner, selector, descriptors))
            os._exit(1)
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        owner.send(REPLY.pack(False, 0, error.errno))
        return
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    selector.register(pidfd, selectors.EVENT_READ, pid)
    socket.send_fds(owner, [REPLY.pack(False, pid, 0)], [pidfd])


def _reap(owner: socket.socket, selector: selectors.BaseSelector, pidfd: int, pid: int) -> None:
    selector.unregister(pidfd)
    os.close(pidfd)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    owner.send(REPLY.pack(True, pid, code))


def _run(
    parent: int, owner: socket.socket, selector: selectors.BaseSelector, descriptors: list[int]
) -> int:
    """Run the call of a new process, and return its exit code."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # of a fork server that is killed
    if os.getppid() != parent:
        return 1
    for key in list(selector.get_map().values()):
        if key.data is not None:
            os.close(key.fd)
    selector.close()
    owner.close()
    call, *sockets = descriptors
    try:
        with open(call, "rb") as file:
            name, target, arguments = _CallUnpickler(file, sockets).load()
        multiprocessing.current_process().name = name
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
