"""Requests of the server to the launcher, which alone can start processes, for new workers."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NamedTuple

from flstream.engines.process_tree import kill_descendants
from flstream.engines.worker_sockets import WorkerSockets, worker_socket_pairs
from flstream.errors import AbortedError, WorkerLostError
from flstream.transport.channel import AbortSignal

_NAME_BYTES = 256
_PID_BYTES = 8
# A reply is a pid with the file descriptors of the sockets, or an error message without any.
_REPLY_BYTES = 1024


class SpawnedWorker(NamedTuple):
    """A worker that was started.

    Attributes:
        pid: pid of the worker's process.
        end: the server's ends of the sockets to the worker.
    """

    pid: int
    end: WorkerSockets

    def kill(self) -> None:
        """Kill the worker's process and those that it has started, with SIGKILL."""
        kill_descendants(self.pid)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def await_end(self, seconds: float) -> None:
        """Wait until the worker's process has closed all its files, for at most ``seconds``."""
        try:
            process = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            poll = select.poll()
            poll.register(process, select.POLLIN)
            poll.poll(seconds * 1e3)
        finally:
            os.close(process)


class WorkerSpawner:
    """Client of the launcher's :class:`SpawnService`, for use in the server. It is thread-safe.

    Args:
        launcher: socket that the :class:`SpawnService` serves.
    """

    def __init__(self, launcher: socket.socket) -> None:
        self._launcher = launcher
        self._turn = threading.Lock()

    def spawn(self, name: str, abort: AbortSignal) -> SpawnedWorker:
        """Have the launcher start a worker, and wait until it has.

        Args:
            name: name of the worker.
            abort: signal that the run is being stopped.

        Returns:
            The started worker.

        Raises:
            WorkerLostError: the worker's process could not be started.
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
                count = len(WorkerSockets._fields)
                reply, fds, _, _ = socket.recv_fds(self._launcher, _REPLY_BYTES, count)
            except OSError as error:
                raise AbortedError(f"the launcher is gone: {error}") from error
        if len(fds) == count:
            ends = [socket.socket(fileno=fd) for fd in fds]
            return SpawnedWorker(int.from_bytes(reply, "little"), WorkerSockets(*ends))
        for fd in fds:
            os.close(fd)
        if fds:
            raise WorkerLostError("the server has too many files open for its pipes")
        if reply:
            raise WorkerLostError(f"its process could not be started: {reply.decode()}")
        raise AbortedError("the launcher is gone")


class SpawnService:
    """Thread of the launcher that starts workers at the server's request.

    Args:
        start: function that starts a worker, given its name and its ends of the sockets, and
            returns the pid of its process.

    Attributes:
        theirs: the server's end of the socket for requests.
    """

    def __init__(self, start: Callable[[str, WorkerSockets], int]) -> None:
        self._start = start
        # A socket of packets: each name arrives in one piece.
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._thread = threading.Thread(target=self._serve, name="spawn_service", daemon=True)

    def begin(self) -> None:
        """Start the thread. The server must have its end of the socket by now."""
        self.theirs.close()
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; no workers are started any more."""
        with suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)
        if self._thread.ident is not None:
            self._thread.join()
        self._ours.close()
        self.theirs.close()

    def _serve(self) -> None:
        # Closing the socket however this ends keeps the server from waiting for a reply.
        with self._ours, suppress(OSError):
            while name := self._ours.recv(_NAME_BYTES).decode():
                self._spawn(name)

    def _spawn(self, name: str) -> None:
        # The worker and the server see a socket close only if no end of it stays open here.
        with ExitStack() as stack:
            try:
                ours, theirs = worker_socket_pairs()
                stack.callback(ours.close)
                stack.callback(theirs.close)
                pid = self._start(name, theirs)
            except Exception as error:  # the server needs a reply in any case
                self._ours.send(f"{type(error).__name__}: {error}".encode()[:_REPLY_BYTES])
                return
            reply = pid.to_bytes(_PID_BYTES, "little")
            socket.send_fds(self._ours, [reply], [end.fileno() for end in ours])
