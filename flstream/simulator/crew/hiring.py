"""How the server gets workers: it asks the launcher, which alone can start processes."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NamedTuple

from flstream.errors import AbortedError, WorkerLostError
from flstream.simulator.crew.links import LinkEnd, link
from flstream.transport.channel import AbortSignal

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

    def hire(self, name: str, abort: AbortSignal) -> Hired:
        """Have a worker started.

        Args:
            name: of the worker.
            abort: raised to stop the run.

        Raises:
            WorkerLostError: its process could not be started.
            AbortedError: the run is being stopped, or the launcher is gone.
        """
        with self._turn:
            try:
                self._launcher.send(name.encode())
                poll = select.poll()
                for each in (self._launcher, abort):
                    poll.register(each.fileno(), select.POLLIN)
                poll.poll()
                if abort.is_set():
                    raise AbortedError("the run was stopped")
                count = len(LinkEnd._fields)
                said, fds, _, _ = socket.recv_fds(self._launcher, _SAID_BYTES, count)
            except OSError as error:
                raise AbortedError(f"the launcher is gone: {error}") from error
        if len(fds) == count:
            ends = [socket.socket(fileno=fd) for fd in fds]
            return Hired(int.from_bytes(said, "little"), LinkEnd(*ends))
        for fd in fds:
            os.close(fd)
        if fds:
            raise WorkerLostError("the server has too many files open for its pipes")
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
        # Whatever ends this, the server is not left waiting.
        with self._ours, suppress(OSError):
            while name := self._ours.recv(_NAME_BYTES).decode():
                self._recruit(name)

    def _recruit(self, name: str) -> None:
        # A pipe whose other end stays open here would never be seen to close.
        with ExitStack() as stack:
            try:
                ours, theirs = link()
                stack.callback(ours.close)
                stack.callback(theirs.close)
                pid = self._start(name, theirs)
            except Exception as error:  # whatever it is, the server is to know
                self._ours.send(f"{type(error).__name__}: {error}".encode()[:_SAID_BYTES])
                return
            told = pid.to_bytes(_PID_BYTES, "little")
            socket.send_fds(self._ours, [told], [end.fileno() for end in ours])
