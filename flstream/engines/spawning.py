"""Requests of the server to the launcher, which alone can start processes, for new workers."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import NamedTuple

from flstream.engines.engine import Engine, WorkerSockets
from flstream.engines.process_tree import kill_descendants
from flstream.errors import AbortedError, FlstreamError, WorkerLostError
from flstream.transport.channel import AbortSignal

# Kinds of requests: start a worker of a name, kill one, wait for the end of one, and how it ended.
_START, _KILL, _AWAIT, _CODE = b"s", b"k", b"w", b"c"
_NUMBER = struct.Struct("<Q")
_AWAITED = struct.Struct("<Qd")
_EXIT_CODE = struct.Struct("<q")
_REQUEST_BYTES = 256
# Seconds within which a process whose sockets have ended is expected to have ended, too.
_ENDED_SECONDS = 2.0
# A reply is the worker's pid and number with the file descriptors of its sockets, or an error
# message without any.
_STARTED = struct.Struct("<QQ")
_REPLY_BYTES = 1024


class SpawnedWorker(NamedTuple):
    """A worker that was started.

    Attributes:
        pid: Pid of the worker's process, on its node.
        end: The server's ends of the sockets to the worker.
        remote: How to end it where it is on another node; None for a process of this machine.
        is_linked: Whether its site's link is emulated, so that little may wait in the sockets, and
            nothing be lent.
    """

    pid: int
    end: WorkerSockets
    remote: RemoteWorker | None = None
    is_linked: bool = False

    def kill(self) -> None:
        """Kill the worker's process and those that it has started, with SIGKILL."""
        if self.remote is not None:
            self.remote.kill()
            return
        kill_descendants(self.pid)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def await_end(self, seconds: float) -> None:
        """Wait until the worker's process has closed all its files, for at most ``seconds``."""
        if self.remote is not None:
            self.remote.await_end(seconds)
            return
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
        launcher: Socket that the :class:`SpawnService` serves.
        is_linked: Whether the links of sites are emulated.
    """

    def __init__(self, launcher: socket.socket, *, is_linked: bool = False) -> None:
        self._launcher = launcher
        self._is_linked = is_linked
        self._turn = threading.Lock()

    def spawn(self, name: str, abort: AbortSignal) -> SpawnedWorker:
        """Start a worker with the launcher's engine, and wait until it runs.

        Args:
            name: Name of the worker.
            abort: Signal that the run is being stopped.

        Returns:
            The started worker.

        Raises:
            WorkerLostError: The worker's process could not be started.
            AbortedError: The run is being stopped, or the launcher is gone.
        """
        with self._turn:
            try:
                self.request(_START, name.encode())
                poll = select.poll()
                for waited in (self._launcher, abort):
                    poll.register(waited.fileno(), select.POLLIN)
                poll.poll()
                if abort.is_set():
                    raise AbortedError("the run was stopped")
                count = len(WorkerSockets._fields)
                reply, fds, _, _ = socket.recv_fds(self._launcher, _REPLY_BYTES, count)
            except OSError as error:
                raise AbortedError(f"the launcher is gone: {error}") from error
        if len(fds) == count:
            ends = WorkerSockets(*(socket.socket(fileno=fd) for fd in fds))
            pid, number = _STARTED.unpack(reply)
            remote = RemoteWorker(self, number) if number else None
            return SpawnedWorker(pid, ends, remote, self._is_linked)
        for fd in fds:
            os.close(fd)
        if fds:
            raise WorkerLostError("the server has too many files open for its pipes")
        if reply:
            reason = reply.decode(errors="replace")
            raise WorkerLostError(f"its process could not be started: {reason}")
        raise AbortedError("the launcher is gone")

    def request(self, kind: bytes, argument: bytes) -> None:
        """Send a request to the launcher; one of each thread arrives in one piece.

        Raises:
            OSError: The launcher is gone.
        """
        self._launcher.send(kind + argument)

    def exit_code(self, name: str) -> int | None:
        """Return how a worker's process has ended that is about to, without being asked to.

        Returns:
            Its exit code, or minus the signal that killed it; None if that is not known.
        """
        with self._turn, suppress(OSError):
            self.request(_CODE, name.encode())
            reply = self._launcher.recv(_REPLY_BYTES)
            return _EXIT_CODE.unpack(reply)[0] if len(reply) == _EXIT_CODE.size else None
        return None

    def await_end(self, number: int, seconds: float) -> None:
        """Wait until a worker on another node has ended, for at most ``seconds``."""
        with self._turn, suppress(OSError):
            self.request(_AWAIT, _AWAITED.pack(number, seconds))
            self._launcher.recv(_REPLY_BYTES)


class RemoteWorker(NamedTuple):
    """A worker on another node, which the launcher's engine ends.

    Attributes:
        spawner: The way to the launcher.
        number: Number by which the engine knows the worker.
    """

    spawner: WorkerSpawner
    number: int

    def kill(self) -> None:
        """Kill the worker; without the launcher, it ends by itself."""
        with suppress(OSError):
            self.spawner.request(_KILL, _NUMBER.pack(self.number))

    def await_end(self, seconds: float) -> None:
        """Wait until it has ended, for at most ``seconds``."""
        self.spawner.await_end(self.number, seconds)


class SpawnService:
    """Thread of the launcher that has an engine start workers at the server's request.

    Args:
        engine: Where the workers come from; it is closed with this.

    Attributes:
        theirs: The server's end of the socket for requests.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # A socket of packets: each request arrives in one piece.
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._thread = threading.Thread(target=self._serve, name="spawn_service", daemon=True)

    def begin(self) -> None:
        """Start the thread. The server must have its end of the socket by now."""
        self.theirs.close()
        self._thread.start()

    def close(self, seconds: float = 0.0) -> None:
        """Stop the thread, and close the engine; no workers are started any more.

        Args:
            seconds: Time that workers of other nodes have to end by themselves.
        """
        with suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)
        self._engine.close(seconds)  # whoever waits in it waits no longer
        if self._thread.ident is not None:
            self._thread.join()
        self._ours.close()
        self.theirs.close()

    def _serve(self) -> None:
        # Closing the socket however this ends keeps the server from waiting for a reply. What takes
        # long is done one after another by a thread of its own, so that workers can be killed
        # meanwhile.
        with self._ours, ThreadPoolExecutor(1, "worker-starts") as starts, suppress(OSError):
            while packet := self._ours.recv(_REQUEST_BYTES):
                kind, argument = packet[:1], packet[1:]
                if kind == _START:
                    starts.submit(self._start, argument.decode())
                elif kind == _KILL:
                    self._engine.kill(*_NUMBER.unpack(argument))
                elif kind == _CODE:
                    starts.submit(self._tell_code, argument.decode())
                elif kind == _AWAIT:
                    starts.submit(self._await, *_AWAITED.unpack(argument))

    def _start(self, name: str) -> None:
        with suppress(OSError):  # the server is gone
            try:
                worker = self._engine.start(name)
                reply = _STARTED.pack(worker.pid, worker.number)
            except Exception as error:  # the server needs a reply in any case
                reason = str(error) if isinstance(error, FlstreamError) else _in_words(error)
                self._ours.send(reason.encode(errors="replace")[:_REPLY_BYTES])
                return
            with closing(worker.ends):
                socket.send_fds(self._ours, [reply], [end.fileno() for end in worker.ends])

    def _tell_code(self, name: str) -> None:
        code = self._engine.exit_code(name, _ENDED_SECONDS)
        with suppress(OSError):
            self._ours.send(b"?" if code is None else _EXIT_CODE.pack(code))

    def _await(self, number: int, seconds: float) -> None:
        self._engine.await_end(number, seconds)
        with suppress(OSError):
            self._ours.send(b"ended")


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
