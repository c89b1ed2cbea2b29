"""How the server gets workers: it asks the launcher, which alone can start processes."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NamedTuple

from flstream.errors import AbortedError, WorkerLostError
from flstream.simulator.links import LinkEnd, link

_NAME_BYTES = 256
_PID_BYTES = 8
# A pid comes with the pipes; anything else is why there are none.
_SAID_BYTES = 1024


class Hired(NamedTuple):
    """A worker that was started: its process, and the server's ends of the pipes to it."""

    pid: int
    end: LinkEnd

    def kill(self) -> None:
        """End the process at once."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Hiring:
    """The server's side: asks for workers by name.

    Threads may share it.

    Args:
        launcher: a socket that the launcher's :class:`Recruiter` serves.
    """

    def __init__(self, launcher: socket.socket) -> None:
        self._launcher = launcher
        self._turn = threading.Lock()

    def hire(self, name: str) -> Hired:
        """Have a worker started.

        Raises:
            WorkerLostError: its process could not be started.
            AbortedError: the launcher is gone, or is ending the run.
        """
        said, fds = b"", list[int]()
        with self._turn, suppress(OSError):
            self._launcher.send(name.encode())
            said, fds, _, _ = socket.recv_fds(self._launcher, _SAID_BYTES, len(LinkEnd._fields))
        if fds:
            ends = [socket.socket(fileno=fd) for fd in fds]
            return Hired(int.from_bytes(said, "little"), LinkEnd(*ends))
        if said:
            raise WorkerLostError(f"its process could not be started: {said.decode()}")
        raise AbortedError("the launcher is gone")


class Recruiter:
    """The launcher's side: starts the workers that the server asks for.

    Args:
        start: starts a worker of a name with its ends of the pipes, and returns its pid.
    """

    def __init__(self, start: Callable[[str, LinkEnd], int]) -> None:
        self._start = start
        # Messages, not a stream: a name is received as it was sent.
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._thread = threading.Thread(target=self._serve, name="recruiter", daemon=True)

    def begin(self) -> None:
        """Serve the server, which has the other end by now."""
        self.theirs.close()
        self._thread.start()

    def close(self) -> None:
        """Start no more workers."""
        with suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)
        if self._thread.ident is not None:
            self._thread.join()
        self._ours.close()
        self.theirs.close()

    def _serve(self) -> None:
        try:
            while name := self._ours.recv(_NAME_BYTES).decode():
                self._recruit(name)
        except OSError:
            return  # the server is gone

    def _recruit(self, name: str) -> None:
        # A pipe whose other end stays open here would never be seen to close.
        with ExitStack() as stack:
            try:
                ours, theirs = link()
                stack.callback(ours.close)
                stack.callback(theirs.close)
                pid = self._start(name, theirs)
            except (OSError, EOFError) as error:
                self._ours.send(f"{type(error).__name__}: {error}".encode()[:_SAID_BYTES])
                return
            told = pid.to_bytes(_PID_BYTES, "little")
            socket.send_fds(self._ours, [told], [end.fileno() for end in ours])
