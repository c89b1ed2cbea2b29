"""The engine of a Ray cluster: an actor on each node starts workers, which dial the server."""

from __future__ import annotations

import math
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Any

from flstream.client.worker_info import WorkerInfo
from flstream.engines.engine import WorkerSockets
from flstream.engines.job_package import runtime_env_of
from flstream.engines.processes import variables_of
from flstream.engines.ray_driver import Answer, FoundNode, RayCall
from flstream.engines.ray_node import NONCE_FILE, NodeJob
from flstream.errors import (
    AbortedError,
    FlstreamError,
    RefusedError,
    SimulationError,
    UsageError,
    WorkerLostError,
)
from flstream.job import Job
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.events import NodeJoined, NodeLost, NodeMeasured, NodesAwaited, Warned
from flstream.telemetry.machine import this_machine
from flstream.text import brief_names
from flstream.transport.channel import Signal, StopSignal
from flstream.transport.sockets import SocketChannel
from flstream.transport.tcp import Admission, TcpListener

# Seconds for the head to answer: to a connection, and while the driver connects or starts one.
_REACH_SECONDS, _CONNECT_SECONDS = 10.0, 120.0
# Seconds for a node to get ready, in which Ray may install what engine.runtime_env asks for.
_READY_SECONDS = 600.0
# Seconds without an answer after which a node, or the head, is lost.
_SILENT_SECONDS = 10.0
# Seconds between two looks at the nodes of the cluster, which tells nobody of new ones.
_LOOK_SECONDS = 2.0
# Seconds after the loss of a node until it may be used again.
_AGAIN_SECONDS = 10.0
# Seconds in which a worker has to have dialled its connections, and its tokens are of use.
_START_SECONDS = 30.0
# Seconds for a worker's process to end before its replacement is started.
_PREDECESSOR_SECONDS = 10.0
# Seconds for the driver to end.
_END_SECONDS = 6.0
# Workers in a row that a node may fail to start until it is given up.
_MOST_FAILURES = 3

Emit = Callable[[NodesAwaited | NodeJoined | NodeLost | NodeMeasured | Warned], None]


class RayWorker:
    """A worker on a node: see :class:`flstream.engines.engine.WorkerProcess`."""

    def __init__(self, engine: RayEngine, number: int, name: str, node: _Node) -> None:
        self._engine = engine
        self.number = number
        self.name = name
        self.node = node
        self.sockets: dict[str, socket.socket] = {}
        self.has_ended = False  # or its node is lost
        self.code: int | None = None

    @property
    def ends(self) -> WorkerSockets:
        """The server's ends of the sockets to it."""
        return WorkerSockets(**self.sockets)

    def kill(self) -> None:
        """Kill it, and what it has started, unless it has ended."""
        if not self.has_ended:
            with suppress(FlstreamError):
                self._engine.request(self.node, "kill", self.number)

    def exit_code(self, seconds: float) -> int | None:
        """Wait until it has ended, and return its exit code, if that is known."""
        with self._engine.changed:
            self._engine.changed.wait_for(lambda: self.has_ended, seconds)
            return self.code

    def end(self, code: int | None = None) -> None:
        """Note its end, and shut its sockets, by which the server notices. The engine is locked."""
        self.has_ended, self.code = True, code
        self.node.workers.pop(self.number, None)
        for end in self.sockets.values():
            with suppress(OSError):  # closed by the server
                end.shutdown(socket.SHUT_RDWR)


class _Node:
    """A node of the cluster, which the engine guards."""

    def __init__(self, ray_id: str, name: str, room: int) -> None:
        self.id = ray_id
        self.name = name
        self.room = room  # for workers
        self.workers: dict[int, RayWorker] = {}
        self.failures = 0  # to start workers, in a row
        # Workers whose processes it is to watch together: name, pid, others.
        self.watched: list[tuple[str, int, Sequence[int]]] = []


class RayEngine:
    """Starts workers on the nodes of a Ray cluster. Threads share it.

    Args:
        job: The job.
        run: Its run directory.
        info: Returns the facts about a worker of a name.
        emit: Called with events of nodes, from any thread.
        stop: Signal that stops the run, which is set once the cluster is gone.

    Attributes:
        changed: Condition that guards all of it.

    Raises:
        UsageError: A node does not see the run directory, or the job's folder is too large.
        SimulationError: There is no such cluster, or it has too few nodes.
        AbortedError: The signal was set.
    """

    def __init__(
        self,
        job: Job,
        run: RunDirectory,
        info: Callable[[str], WorkerInfo],
        emit: Emit,
        stop: StopSignal,
    ) -> None:
        section = self._section = job.engine
        self._info, self._emit, self._stop = info, emit, stop
        self._most_workers = job.clients.parallel or job.clients.count
        self._log = run.log("ray")
        self.changed = threading.Condition()
        self._end: FlstreamError | None = None  # why nothing is to be waited for any more
        self._has_begun = False
        self._nodes: list[_Node] = []
        self._not_before: dict[str, float] = {}  # by ID: when a node may be used again
        self._refusal, self._flaw = "", ""  # why a node is of no use, or not at the beginning
        self._none_since: float | None = None  # since when no node may have another worker
        self._calls: dict[int, Future[Any]] = {}
        self._numbers = count(1)
        self._threads: list[threading.Thread] = []
        self._listener: TcpListener | None = None
        self._job = NodeJob(
            run=run.path,
            folder=job.folder,
            nonce=secrets.token_hex(),
            versions=this_machine().versions,
            variables=variables_of(job),
            train=job.train,
            threads=job.clients.threads,
            gpus=section.gpus,
        )
        runtime_env, large = runtime_env_of(job.folder, run.path, section.runtime_env)
        if section.address is not None:
            _expect_listener(section.address)
        self._nonce_file = run.path / NONCE_FILE
        self._nonce_file.write_text(self._job.nonce)
        self._over = Signal()
        self._pipe, theirs = Pipe()
        with theirs, self._log.open("ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "flstream.engines.ray_driver", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # it ends by its pipe, in order
            )
        self._run(self._receive)
        try:
            host = self._connected(section.address, runtime_env)
            self._listener = TcpListener(f"[{host}]:0", self._take_connection)
            self._await_nodes()
        except BaseException:
            self.close()
            raise
        if large:
            emit(
                Warned(
                    message=f"large files of the job's folder stay behind ({brief_names(large)}); "
                    f"a node finds them if it sees {job.folder}, else put them where all nodes do"
                )
            )

    @property
    def failure(self) -> str:
        """Reason why it can start no worker any more; empty while it can."""
        return str(self._end) if isinstance(self._end, SimulationError) else ""

    @property
    def room(self) -> int:
        """How many workers the nodes of now have room for together."""
        with self.changed:
            return sum(node.room for node in self._nodes)

    def start(self, name: str) -> RayWorker:
        """Start a worker on the node with the most room, and wait for its connections.

        A process that the worker had before is waited for first: two of them would write the same
        files.

        Raises:
            WorkerLostError: There is no node, or it is lost meanwhile, or cannot start the worker.
            SimulationError: The cluster is gone.
            AbortedError: The run is being stopped.
        """
        assert self._listener is not None
        with self.changed:
            self._await(
                lambda: all(worker.name != name for worker in self._workers), _PREDECESSOR_SECONDS
            )
            node = self._node_with_room()
            worker = RayWorker(self, next(self._numbers), name, node)
            node.workers[worker.number] = worker
        roles = WorkerSockets._fields
        tokens = {role: self._listener.admit(str(worker.number), role) for role in roles}
        try:
            keys = {role: token.key for role, token in tokens.items()}
            arguments = worker.number, self._info(name), self._listener.address, keys
            self._call(node, "start", *arguments, seconds=_START_SECONDS)
            with self.changed:
                self._await(
                    lambda: worker.has_ended or len(worker.sockets) == len(roles), _START_SECONDS
                )
                if worker.has_ended or len(worker.sockets) < len(roles):
                    how = "ended" if worker.has_ended else f"took more than {_START_SECONDS:g} s"
                    raise RefusedError(f"it {how} before it was connected")
                node.failures = 0
        except RefusedError as error:
            self._note_failure(worker, str(error))
            raise WorkerLostError(f"{name} could not be started on {node.name}: {error}") from error
        finally:
            for token in tokens.values():
                self._listener.dismiss(token)
        return worker

    def watch(self, name: str, pid: int, others: Sequence[int]) -> None:
        """Sample the memory of a worker's processes together, on its node."""
        with self.changed:
            for worker in self._workers:
                if worker.name == name:
                    worker.node.watched.append((name, pid, list(others)))

    def close(self, seconds: float = 0.0) -> None:
        """End the driver, and with it all actors and workers.

        Args:
            seconds: Time that workers have to end by themselves.
        """
        with self.changed:
            self.changed.wait_for(lambda: self._end or not self._workers, seconds)
            self._finish(AbortedError("the run is over"))
        if self._over.is_set():
            return
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._pipe.close()
        try:
            self._driver.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._driver.kill()
            self._driver.wait()
        if self._listener is not None:
            self._listener.close()
        with suppress(OSError):
            self._nonce_file.unlink()

    def request(
        self, node: _Node | None, method: str, *arguments: Any, seconds: float = _SILENT_SECONDS
    ) -> Future[Any]:
        """Call a method of a node's actor or of the driver, and return the future of its result.

        Raises:
            SimulationError: The cluster is gone.
            AbortedError: The run is being stopped.
        """
        with self.changed:
            if self._end is not None:
                raise self._end
            number = next(self._numbers)
            call = self._calls[number] = Future()
            with suppress(OSError):  # of a driver that has ended, which is met elsewhere
                self._pipe.send(
                    RayCall(number, node.id if node else "", method, arguments, seconds)
                )
        return call

    def _call(self, node: _Node | None, method: str, *arguments: Any, seconds: float) -> Any:
        """Call a method of a node's actor or of the driver, and return its result.

        Raises:
            RefusedError: It is gone, or silent, or cannot do it.
            SimulationError: The cluster is gone.
            AbortedError: The run is being stopped.
        """
        call = self.request(node, method, *arguments, seconds=seconds)
        try:
            return call.result(seconds + _SILENT_SECONDS)
        except TimeoutError as error:
            raise RefusedError("the Ray driver hangs") from error

    @property
    def _workers(self) -> list[RayWorker]:
        return [worker for node in self._nodes for worker in node.workers.values()]

    def _run(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name="ray", daemon=True)
        self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]
        thread.start()

    def _connected(self, address: str | None, runtime_env: dict[str, Any]) -> str:
        """Connect the driver to the cluster; return the address of this machine in it."""
        try:
            host: str = self._call(None, "connect", address, runtime_env, seconds=_CONNECT_SECONDS)
        except RefusedError as error:
            raise self._unusable(str(error)) from error
        return host

    def _await_nodes(self) -> None:
        """Wait until as many nodes are ready as the job asks for."""
        section = self._section
        nodes: list[FoundNode] = self._call(None, "nodes", seconds=_SILENT_SECONDS)
        wanted = section.nodes or sum(self._room_of(node) > 0 for node in nodes)
        if not wanted:
            also = f" and {section.gpus} GPUs (engine.gpus)" if section.gpus else ""
            raise SimulationError(
                f"no node of the Ray cluster has {section.cpus:g} CPUs (engine.cpus){also} for a "
                "worker"
            )
        self._emit(NodesAwaited(nodes=wanted))
        self._run(self._look_for_nodes)
        with self.changed:
            self._await(lambda: self._flaw or len(self._nodes) >= wanted, section.wait)
            if self._flaw:
                raise UsageError(self._flaw)
            self._has_begun = True
            ready = len(self._nodes)
        if ready < wanted:
            also = f"; of the last one, {self._refusal}" if self._refusal else ""
            raise SimulationError(
                f"{ready} of {wanted} nodes were ready within {section.wait:g} s (engine.wait)"
                f"{also}; see what ray status prints, or set engine.nodes"
            )

    def _room_of(self, node: FoundNode) -> int:
        """Return how many workers a node has room for."""
        section = self._section
        room = min(int(node.cpus // section.cpus), self._most_workers)
        return min(room, int(node.gpus // section.gpus)) if section.gpus else room

    def _look_for_nodes(self) -> None:
        """Follow each node of the cluster that has room, also those that come later."""
        with suppress(AbortedError, SimulationError):
            while True:
                try:
                    nodes: list[FoundNode] = self._call(None, "nodes", seconds=_SILENT_SECONDS)
                except RefusedError as error:
                    self._fail(f"its head: {error}")
                    return
                for found in nodes:
                    room = self._room_of(found)
                    if room and time.monotonic() >= self._not_before.get(found.id, 0.0):
                        self._not_before[found.id] = math.inf
                        self._run(self._follow, _Node(found.id, found.name, room))
                with self.changed:
                    self._await(lambda: False, _LOOK_SECONDS)

    def _follow(self, node: _Node) -> None:
        """Get a node ready, and follow it to its end."""
        section, ahead, has_joined = self._section, -math.inf, False
        try:
            room = node.room * section.cpus, node.room * (section.gpus or 0)
            self._call(None, "place", node.id, *room, seconds=_SILENT_SECONDS)
            facts = self._call(node, "describe", node.name, self._job, seconds=_READY_SECONDS)
            if facts.flaw:
                self._refuse(
                    node,
                    f"it {facts.flaw}, the run directory; mount that folder there, or put the run "
                    "where all nodes see it (--run-dir)",
                    is_flaw=True,
                )
                return
            with self.changed:
                self._nodes.append(node)
                has_joined = True
                self.changed.notify_all()
            other = facts.processor if facts.processor != this_machine().processor else ""
            self._report(NodeJoined(node=node.name, cpus=node.room, other_processor=other))
            while True:
                with self.changed:
                    watched, node.watched = node.watched, []
                report = self._call(node, "poll", watched, seconds=_SILENT_SECONDS)
                # What takes long makes a clock seem to be behind, so the largest value counts.
                ahead = max(ahead, report.time - time.time())
                self._report(
                    NodeMeasured(node=node.name, memory=report.memory, seconds_ahead=ahead)
                )
                with self.changed:
                    for number in report.ended.keys() & node.workers.keys():
                        node.workers[number].end(report.ended[number])
                    self.changed.notify_all()
        except RefusedError as error:
            if has_joined:
                self._lose(node, str(error), _AGAIN_SECONDS)
            else:
                self._refuse(node, str(error))
        except (AbortedError, SimulationError):
            return

    def _refuse(self, node: _Node, reason: str, *, is_flaw: bool = False) -> None:
        """Drop a node that cannot be used."""
        with self.changed:
            self._refusal = f"node {node.name}: {reason}"
            if is_flaw and not self._has_begun:
                self._flaw = self._refusal
            self.changed.notify_all()
        self._drop(node)
        self._report(NodeLost(node=node.name, reason=f"it cannot be used: {reason}"))

    def _lose(self, node: _Node, reason: str, again: float = math.inf) -> None:
        """End the workers of a node that is gone or given up, and use it again in some seconds."""
        with self.changed:
            if node not in self._nodes:
                return
            self._nodes.remove(node)
            for worker in list(node.workers.values()):
                worker.end()
            self.changed.notify_all()
        self._drop(node)
        self._not_before[node.id] = time.monotonic() + again
        self._report(NodeLost(node=node.name, reason=reason))

    def _drop(self, node: _Node) -> None:
        with suppress(FlstreamError):
            self.request(None, "drop", node.id)

    def _node_with_room(self) -> _Node:
        """Return the node that is to have the next worker; wait for one if there is none."""

        def nodes() -> list[_Node]:
            has_gpus = bool(self._section.gpus)  # nodes share CPUs, but no GPUs
            return [node for node in self._nodes if not has_gpus or len(node.workers) < node.room]

        seconds, now = self._section.wait, time.monotonic()
        self._none_since = None if nodes() else self._none_since or now
        self._await(nodes, max((self._none_since or now) + seconds - now, 0.0))
        if not nodes():
            what = "no node has free GPUs" if self._nodes else "no node is left"
            raise WorkerLostError(
                f"{what}, and none came within {seconds:g} s (engine.wait); resume with --resume "
                "once there are nodes, or with --engine local"
            )
        self._none_since = None
        # One that could not start a worker would draw all others to it, as it has the most room.
        return min(nodes(), key=lambda node: (node.failures, len(node.workers) / node.room))

    def _note_failure(self, worker: RayWorker, reason: str) -> None:
        """End a worker that could not be started, and give up a node that starts none."""
        worker.kill()
        with self.changed:
            worker.end()
            worker.node.failures += 1
            is_broken = worker.node.failures >= _MOST_FAILURES
            self.changed.notify_all()
        if is_broken:
            why = f"it could not start {_MOST_FAILURES} workers in a row: {reason}"
            self._lose(worker.node, why)

    def _take_connection(self, channel: SocketChannel, admission: Admission) -> None:
        """Take a connection of a worker, which has proven that it has the token."""
        assert self._listener is not None
        self._listener.dismiss(admission.token)  # a token is of use once
        with self.changed:
            for worker in self._workers:
                if worker.number == int(admission.name):
                    worker.sockets[admission.role] = channel.detach()
                    self.changed.notify_all()
                    return
        channel.close()

    def _report(self, event: NodeJoined | NodeLost | NodeMeasured) -> None:
        with suppress(AbortedError):  # nobody is left who could be told
            if self._end is None:  # nodes that leave at the end are not lost
                self._emit(event)

    def _await(self, condition: Callable[[], Any], seconds: float) -> None:
        """Wait until something holds, for at most ``seconds``. The engine is locked.

        Raises:
            SimulationError: The cluster is gone.
            AbortedError: The run is being stopped.
        """
        self.changed.wait_for(lambda: self._end or condition(), seconds)
        if self._end is not None:
            raise self._end

    def _receive(self) -> None:
        """Take what the driver answers, until it ends or the run is stopped."""
        with suppress(EOFError, OSError):
            while self._pipe in wait([self._pipe, self._stop.fileno(), self._over.fileno()]):
                answer: Answer = self._pipe.recv()
                with self.changed:
                    call = self._calls.pop(answer.number, None)
                if call is not None and answer.error is None:
                    call.set_result(answer.value)
                elif call is not None:
                    call.set_exception(RefusedError(answer.error))
            with self.changed:
                self._finish(AbortedError("the run was stopped"))
            return
        self._fail("its driver has ended")

    def _fail(self, reason: str) -> None:
        """End the run, for which there is no cluster any more."""
        with self.changed:
            if self._end is None:
                self._end = self._unusable(reason)
                # First, so that nobody takes the ends of workers for failures of sites.
                self._stop.set()
            for worker in self._workers:
                worker.end()
            self._finish(self._end)

    def _finish(self, end: FlstreamError) -> None:
        """End all waiting with an error. The engine is locked."""
        self._end = self._end or end
        for call in self._calls.values():
            call.set_exception(self._end)
        self._calls.clear()
        self.changed.notify_all()

    def _unusable(self, reason: str) -> SimulationError:
        how, also = "cannot be used", ""
        if self._has_begun:
            how = "is gone"
            also = "resume with --resume once it is back, or with --engine local; "
        where = self._section.address or "of this machine"
        return SimulationError(
            f"the Ray cluster {where} {how}: {reason}; {also}its output is in {self._log}"
        )


def _expect_listener(address: str) -> None:
    """Refuse the address of a cluster at which nobody listens, which Ray tries for a minute."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _REACH_SECONDS).close()
    except (OSError, ValueError) as error:
        raise SimulationError(
            f"the Ray cluster {address} cannot be reached: {error}; give the HOST:PORT that "
            "ray start --head printed"
        ) from error
