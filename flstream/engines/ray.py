"""The engine of a Ray cluster: its driver has nodes start the workers of a run.

The server calls methods of the driver by a pipe. The driver answers with the records below, with
events of nodes, and with the error for which it ends.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from typing import Any, NamedTuple

from flstream.engines.engine import WorkerSockets
from flstream.engines.processes import ProcessHost
from flstream.errors import (
    AbortedError,
    FlstreamError,
    SimulationError,
    UsageError,
    WorkerLostError,
)
from flstream.job import Job
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.events import AnyEvent, NodeEvent, Warned
from flstream.transport.channel import AbortSignal

NONCE_FILE = ".nonce"
"""File of the run directory by whose content a node finds out whether it sees that directory."""

# Seconds for the driver to start a worker once there is a node, or to say that it has not.
_START_SECONDS = 90.0
# Seconds for the driver to end.
_END_SECONDS = 6.0


class ClusterReady(NamedTuple):
    """The run may begin, with room for so many workers."""

    room: int


class WorkerConnected(NamedTuple):
    """A worker is connected; its sockets' descriptors follow, in their order."""

    name: str


class WorkerEnded(NamedTuple):
    """A worker has ended, with an exit code if that is known."""

    name: str
    code: int | None
    reason: str


Message = ClusterReady | WorkerConnected | WorkerEnded | NodeEvent | Warned | FlstreamError


class RayWorker:
    """A worker on a node: see :class:`flstream.engines.engine.WorkerProcess`."""

    def __init__(self, engine: RayEngine, name: str, ends: WorkerSockets) -> None:
        self.ends = ends
        self.ended: futures.Future[int | None] = futures.Future()  # its exit code
        self._engine = engine
        self._name = name

    def kill(self) -> None:
        """Kill the worker, and what it has started, unless it has ended."""
        if not self.ended.done():
            self._engine.call("kill", self._name)

    def exit_code(self, seconds: float) -> int | None:
        """Wait until the worker has ended, and return its exit code, if that is known."""
        with suppress(TimeoutError):
            return self.ended.result(seconds)
        return None

    def end(self, code: int | None = None) -> None:
        """Note the worker's end, and shut its sockets, by which the server notices."""
        self.ended.set_result(code)
        for sock in self.ends:
            with suppress(OSError):  # closed by the server
                sock.shutdown(socket.SHUT_RDWR)


class RayEngine:
    """Starts workers on the nodes of a Ray cluster. Threads share it.

    Args:
        job: The job.
        run: Its run directory, on a folder that all nodes see.
        host: Process host of this machine.
        emit: Called with events of nodes, from any thread.
        stop: Signal that stops the run, which is set once the cluster is gone.

    Attributes:
        job: The job whose workers it starts.
        room: How many workers the first nodes have room for together.
        driver: Process of the driver.

    Raises:
        UsageError: A node does not see the run directory.
        SimulationError: There is no such cluster, or none of its nodes can be used.
        AbortedError: The signal was set.
    """

    def __init__(
        self,
        job: Job,
        run: RunDirectory,
        host: ProcessHost,
        emit: Callable[[AnyEvent], None],
        stop: AbortSignal,
    ) -> None:
        self.job = job
        self._run, self._emit, self._stop = run, emit, stop
        self._ready: futures.Future[int] = futures.Future()
        self._lock = threading.Lock()  # guards the next three
        self._failure: FlstreamError | None = None  # why no worker can be started any more
        self._starting: dict[str, futures.Future[RayWorker]] = {}
        self._workers: dict[str, RayWorker] = {}
        ours, theirs = socket.socketpair()
        with theirs:
            self.driver = host.start(
                "ray-driver", "flstream.engines.ray_driver:main", theirs, job, run
            )
        self._pipe, self._sending = Connection(ours.detach()), threading.Lock()
        self._thread = threading.Thread(target=self._receive, name="ray-engine", daemon=True)
        self._thread.start()
        try:
            self.room = self._ready.result()
        except BaseException:
            self.close()
            raise

    @property
    def failure(self) -> str:
        """Reason why the cluster is gone; empty while it can be used."""
        return str(self._failure) if isinstance(self._failure, SimulationError) else ""

    def start(self, name: str) -> RayWorker:
        """Start a worker on the node with the most room, and wait for its connections.

        Raises:
            WorkerLostError: There is no node, or it is lost meanwhile, or cannot start the worker.
            SimulationError: The cluster is gone.
            AbortedError: The run is being stopped.
        """
        starting: futures.Future[RayWorker] = futures.Future()
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._starting[name] = starting
        self.call("start", name, self.job)
        try:
            return starting.result(self.job.engine.wait + _START_SECONDS)
        except TimeoutError:
            error = self._gone("its driver hangs")
            self._fail(error)
            raise error from None

    def watch(self, name: str, pid: int, others: Sequence[int]) -> None:
        """Measure the memory of a worker's processes on its node."""
        self.call("watch", name, pid, others)

    def close(self, seconds: float = 0.0) -> None:
        """End the driver, and with it all actors and workers: see :class:`Engine`."""
        futures.wait([worker.ended for worker in list(self._workers.values())], seconds)
        self._fail(AbortedError("the run is over"))
        self.call("leave")
        if self.driver.exit_code(_END_SECONDS) is None:
            self.driver.kill()
        self._thread.join()
        self._pipe.close()
        (self._run.path / NONCE_FILE).unlink(missing_ok=True)

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method of the driver, without an answer."""
        with self._sending, suppress(OSError):  # of a driver that has ended, which is met elsewhere
            self._pipe.send((method, arguments))

    def _receive(self) -> None:
        """Take the driver's messages until it ends."""
        sources: list[Connection | int] = [self._pipe, self._stop.fileno()]
        try:
            while True:
                if self._pipe in wait(sources):
                    self._take(self._pipe.recv())
                else:
                    self._fail(AbortedError("the run was stopped"))
                    sources.pop()
        except (EOFError, ConnectionError):
            self._fail(self._gone("its driver has ended"))
        except Exception as error:  # such as a full disk: nobody else would wake who waits
            self._fail(self._gone(f"{type(error).__name__}: {error}"))
        for worker in self._workers.values():
            worker.end()

    def _take(self, message: Message) -> None:
        match message:
            case ClusterReady(room):
                if not self._ready.done():  # the run is not being stopped
                    self._ready.set_result(room)
            case UsageError():
                self._fail(message)
            case FlstreamError():
                self._fail(self._gone(str(message)))
            case WorkerConnected(name):
                handles = [recv_handle(self._pipe) for _ in WorkerSockets._fields]
                for handle in handles:
                    os.set_inheritable(handle, False)
                ends = WorkerSockets(*(socket.socket(fileno=handle) for handle in handles))
                with self._lock:
                    worker = self._workers[name] = RayWorker(self, name, ends)
                    if name in self._starting:
                        self._starting.pop(name).set_result(worker)
            case WorkerEnded(name, code, reason):
                with self._lock:
                    if name in self._workers:
                        self._workers.pop(name).end(code)
                    elif name in self._starting:
                        lost = WorkerLostError(f"{name} could not be started: {reason}")
                        self._starting.pop(name).set_exception(lost)
            case _ if self._failure is None:  # nodes that leave at the end are not lost
                with suppress(AbortedError):  # nobody is left who could be told
                    self._emit(message)

    def _fail(self, error: FlstreamError) -> None:
        """Start no further worker; without a cluster, stop the run."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
            if self.failure:
                # First, so that nobody takes the ends of workers for failures of sites.
                self._stop.set()
            for starting in self._starting.values():
                starting.set_exception(error)
            if not self._ready.done():
                self._ready.set_exception(error)
            self._starting.clear()

    def _gone(self, reason: str) -> SimulationError:
        how, step = "cannot be used", "see its log, ray.log, and what ray status prints"
        if self._ready.done():
            how, step = "is gone", "resume with --resume once it is back, or with --engine local"
        where = self.job.engine.address or "of this machine"
        return SimulationError(f"the Ray cluster {where} {how}: {reason}; {step}")
