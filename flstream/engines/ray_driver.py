"""The driver of a Ray cluster: an actor on each node starts the workers of a run.

It is a process of its own, a child of the server's fork server, since the loss of the head ends a
driver. Workers connect to it, and it passes the connections on to the server. Ray moves no model.
"""

from __future__ import annotations

import asyncio
import glob
import math
import os
import secrets
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, NoReturn

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from flstream.engines.engine import WorkerSockets
from flstream.engines.ray import NONCE_FILE, ClusterReady, WorkerConnected, WorkerEnded
from flstream.engines.ray_node import NodeHost
from flstream.errors import FlstreamError, SimulationError, UsageError
from flstream.job import Job
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.events import NodeJoined, NodeLost, NodeMeasured, NodesAwaited, Warned
from flstream.telemetry.machine import processor_name, versions
from flstream.text import MOST_OF_AN_ERROR, brief_names, quotable
from flstream.transport.channel import Channel
from flstream.transport.tcp import Admission, TcpListener

# Seconds to connect to a cluster, or to start one.
_CONNECT_SECONDS = 60.0
# Seconds without an answer after which a node, or the head, is lost.
_SILENT_SECONDS = 10.0
# Seconds for a node to fork a worker, and for that to connect.
_START_SECONDS = 30.0
# Seconds for Ray to take the end of an actor.
_KILL_SECONDS = 2.0
# Seconds between two looks at the nodes of the cluster, which tells nobody of new ones.
_LOOK_SECONDS = 2.0
# Seconds after the loss of a node until it may be used again.
_AGAIN_SECONDS = 10.0
# Size of the largest file of the job's folder that Ray brings to the nodes.
_MOST_FILE_BYTES = 16 << 20


class _Node:
    """A node of the cluster, with room for so many workers."""

    def __init__(self, name: str, room: int) -> None:
        self.name = name
        self.room = room
        self.actor: Any = None
        self.is_ready = self.is_preparing = False
        self.failures = 0  # to start workers, in a row
        self.workers: dict[str, dict[str, socket.socket]] = {}  # their connections, by role
        self.watched: list[tuple[str, int, Sequence[int]]] = []  # for the next poll


class _Driver:
    """Starts and follows the workers on the nodes of a cluster."""

    def __init__(self, server: Connection, job: Job, run: RunDirectory) -> None:
        self._server, self._job, self._run = server, job, run
        self._nonce = secrets.token_hex()
        self._nodes: list[_Node] = []
        self._seen: set[str] = set()  # IDs of nodes that are used, or never will be
        self._refusal = "no actor has started"  # or why the last node cannot be used
        self._changed_at = time.monotonic()  # when a node joined or was lost
        self._has_begun = False
        self._loop = asyncio.get_running_loop()
        self._change = asyncio.Event()  # another one after each change

    async def serve(self) -> NoReturn:
        """Serve the calls of the server until it is gone, or the cluster cannot be used."""
        try:
            try:
                host = await asyncio.wait_for(asyncio.to_thread(self._connect), _CONNECT_SECONDS)
            except TimeoutError as late:
                raise SimulationError(
                    f"it did not answer within {_CONNECT_SECONDS:g} s; if it was killed, run ray "
                    "stop first"
                ) from late
            self._listener = TcpListener(f"[{host}]:0", self._take_connection)
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._look())
                self._tasks.create_task(self._await_nodes())
                while True:
                    method, arguments = await asyncio.to_thread(self._server.recv)
                    self._tasks.create_task(getattr(self, method)(*arguments))
        except* EOFError:
            ray.shutdown()  # the server kills this process if that hangs, as without a head
        except* Exception as errors:  # of whatever kind: the server needs a sentence
            traceback.print_exc()
            error = errors.exceptions[0]
            if not isinstance(error, FlstreamError):
                error = SimulationError(_in_words(error))
            with suppress(OSError):  # the server is gone
                self._server.send(error)
        os._exit(0)

    async def start(self, name: str, job: Job) -> None:
        """Start a worker; send the server its connections, or the reason for none."""
        # Two processes of a worker would write the same files.
        until = time.monotonic() + _START_SECONDS
        await self._wait(lambda: self._node_of(name) is None, until)
        if self._node_of(name) is not None:
            self._server.send(WorkerEnded(name, None, "its predecessor does not end"))
            return
        await self._wait(self._nodes_with_room, self._changed_at + job.engine.wait)
        nodes = self._nodes_with_room()
        if not nodes:
            reason = (
                f"no node is left that has room, and none came within {job.engine.wait:g} s "
                "(engine.wait); resume with --resume once there is one, or with --engine local"
            )
            self._server.send(WorkerEnded(name, None, reason))
            return
        # One that could not start a worker would draw all others to it, as it has the most room.
        node = min(nodes, key=lambda node: (node.failures, len(node.workers) / node.room))
        sockets = node.workers[name] = {}
        tokens = {role: self._listener.admit(name, role) for role in WorkerSockets._fields}
        keys = {role: token.key for role, token in tokens.items()}
        until = time.monotonic() + _START_SECONDS
        try:
            call = node.actor.start.remote(job, self._run, name, self._listener.address, keys)
            await asyncio.wait_for(call, _START_SECONDS)
            await self._wait(
                lambda: len(sockets) == len(tokens) or node.workers.get(name) is not sockets, until
            )
            if len(sockets) < len(tokens):
                raise TimeoutError
        except Exception as error:  # of Ray, or of the actor
            node.actor.kill.remote(name)
            self._end(node, name, None, _in_words(error, _START_SECONDS))
        for token in tokens.values():
            self._listener.dismiss(token)
        if node.workers.get(name) is not sockets:  # of which the server knows
            node.failures += 1
            return
        node.failures = 0
        self._server.send(WorkerConnected(name))
        for role in WorkerSockets._fields:
            send_handle(self._server, sockets[role].fileno(), 0)
            sockets[role].close()

    async def kill(self, name: str) -> None:
        """Kill a worker with all that it has started."""
        if (node := self._node_of(name)) is not None:
            node.actor.kill.remote(name)

    async def watch(self, name: str, pid: int, others: Sequence[int]) -> None:
        """Measure the memory of processes together as a worker's."""
        if (node := self._node_of(name)) is not None:
            node.watched.append((name, pid, others))

    async def leave(self) -> None:
        """Leave the cluster, as without the server."""
        raise EOFError

    def _connect(self) -> str:
        """Connect to the cluster, or start one; return this machine's address in it."""
        folder, run, engine = self._job.folder, self._run.path, self._job.engine
        if engine.address is not None:  # Ray tries for a minute where nobody listens
            host, _, port = engine.address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _SILENT_SECONDS).close()
        (run / NONCE_FILE).write_text(self._nonce)
        large = sorted(str(path.relative_to(folder)) for path in _large_files(folder, run))
        if large:
            message = (
                f"files of the job's folder that are large stay behind ({brief_names(large)}); a "
                f"node finds them if it sees {folder}, else put them where all nodes do"
            )
            self._server.send(Warned(message=message))
        unsent = [*large, os.path.relpath(run, folder)]  # a run elsewhere matches nothing
        excludes = ["/runs", ".?*", "__pycache__", *(f"/{glob.escape(path)}" for path in unsent)]
        excludes += engine.runtime_env.get("excludes", [])
        environment = {"working_dir": str(folder), **engine.runtime_env, "excludes": excludes}
        try:
            ray.init(engine.address, runtime_env=environment, log_to_driver=False)
        except ConnectionError as error:  # as Ray calls a token that is missing, too
            raise SimulationError(
                f"{_in_words(error)}; if its head said that token authentication is enabled, set "
                "RAY_AUTH_MODE=token"
            ) from error
        return str(ray.util.get_node_ip_address())

    def _take_connection(self, channel: Channel, admission: Admission) -> None:
        """Take a connection of a worker that has proven that it has the token."""
        self._listener.dismiss(admission.token)  # a token is of use once
        self._loop.call_soon_threadsafe(self._keep, channel.detach(), admission)

    def _keep(self, sock: socket.socket, admission: Admission) -> None:
        if (node := self._node_of(admission.name)) is not None:
            node.workers[admission.name][admission.role] = sock
            self._note_change()
        else:
            sock.close()

    def _end(self, node: _Node, name: str, code: int | None, reason: str) -> None:
        """Tell the server of the end of a worker."""
        if node.workers.pop(name, None) is not None:
            self._server.send(WorkerEnded(name, code, f"on node {node.name}, {reason}"))
            self._note_change()

    async def _look(self) -> None:
        """Follow all nodes of the cluster that have room, later ones too."""
        while True:
            try:
                nodes = await asyncio.wait_for(asyncio.to_thread(ray.nodes), _SILENT_SECONDS)
            except Exception as error:  # of the head, or of what connects to it
                raise SimulationError(f"its head: {_in_words(error)}") from error
            for facts in nodes:
                identity, room = facts["NodeID"], self._room_of(facts)
                if room and identity not in self._seen:
                    name = facts["NodeName"]  # by default its address, which nodes may share
                    if any(node.name == name for node in self._nodes):
                        name = f"{name}-{identity[:6]}"
                    self._seen.add(identity)
                    self._nodes.append(node := _Node(name, room))
                    self._note_change()
                    self._tasks.create_task(self._follow(node, identity))
            await asyncio.sleep(_LOOK_SECONDS)

    def _room_of(self, facts: Mapping[str, Any]) -> int:
        """Return how many workers a node has room for."""
        engine, clients = self._job.engine, self._job.clients
        resources = facts["Resources"] if facts["Alive"] else {}
        room = min(resources.get("CPU", 0) // engine.cpus, clients.parallel or clients.count)
        return int(min(room, resources.get("GPU", 0) // engine.gpus) if engine.gpus else room)

    async def _await_nodes(self) -> None:
        """Report the start to the server: all nodes are ready, or some are in time."""
        engine = self._job.engine
        until = time.monotonic() + engine.wait
        self._server.send(NodesAwaited())
        await self._wait(lambda: self._seen and all(node.is_ready for node in self._nodes), until)
        # Imports and a large base take longer on a busy machine; they have limits of their own.
        await self._wait(
            lambda: (
                any(node.is_ready for node in self._nodes)
                or not any(node.is_preparing for node in self._nodes)
            )
        )
        self._has_begun = True
        if room := sum(node.room for node in self._nodes if node.is_ready):
            self._server.send(ClusterReady(room))
            return
        also = f" and {engine.gpus} GPUs (engine.gpus)" if engine.gpus else ""
        raise SimulationError(
            f"no node with {engine.cpus:g} CPUs (engine.cpus){also} for a worker was ready within "
            f"{engine.wait:g} s (engine.wait): {self._refusal}"
        )

    async def _follow(self, node: _Node, identity: str) -> None:
        """Start an actor on a node, and follow its workers until it is lost."""
        engine = self._job.engine
        try:
            # The actor takes the CPUs and GPUs of all workers there, and deals out the GPUs.
            options = ray.remote(NodeHost).options(
                num_cpus=node.room * engine.cpus,
                num_gpus=node.room * (engine.gpus or 0),
                max_concurrency=2 * node.room + 2,  # starts and kills, and a poll
                scheduling_strategy=NodeAffinitySchedulingStrategy(identity, soft=False),
            )
            node.actor = options.remote()
            processor = await node.actor.describe.remote(self._run, self._nonce, versions())
            node.is_preparing = True
            await node.actor.prepare.remote(node.name, self._job, self._run)
            node.is_preparing = False
            node.is_ready, self._changed_at = True, time.monotonic()
            self._note_change()
            other = processor if processor != processor_name() else ""
            self._server.send(NodeJoined(node=node.name, cpus=node.room, other_processor=other))
            while True:
                watched, node.watched = node.watched, []
                call = node.actor.poll.remote(watched)
                ended, memory = await asyncio.wait_for(call, _SILENT_SECONDS)
                self._server.send(NodeMeasured(node=node.name, memory=memory))
                for name, code in ended.items():
                    self._end(node, name, code, "it ended before it was connected")
        except Exception as error:  # of Ray, or of the actor
            reason = _in_words(error)
            if not node.is_ready:
                self._refusal = f"node {node.name}: {reason}"
                reason = f"it cannot be used: {reason}"
            if isinstance(error, UsageError) and not self._has_begun:
                raise UsageError(self._refusal) from error
        self._nodes.remove(node)
        self._changed_at = time.monotonic()
        self._note_change()
        # First, as no two processes of a worker may write the same files.
        with suppress(Exception):  # of Ray, which may have done that, or be gone
            await asyncio.wait_for(asyncio.to_thread(ray.kill, node.actor), _KILL_SECONDS)
        for name in list(node.workers):
            self._end(node, name, None, "it was lost")
        self._server.send(NodeLost(node=node.name, reason=reason))
        if node.is_ready:
            await asyncio.sleep(_AGAIN_SECONDS)
            self._seen.discard(identity)

    def _node_of(self, name: str) -> _Node | None:
        """Return the node of a worker that has not ended."""
        return next((node for node in self._nodes if name in node.workers), None)

    def _nodes_with_room(self) -> list[_Node]:
        """Return the nodes that may have another worker: they share CPUs, but no GPUs."""
        is_shared = not self._job.engine.gpus
        nodes = [node for node in self._nodes if node.is_ready]
        return [node for node in nodes if is_shared or len(node.workers) < node.room]

    async def _wait(self, condition: Callable[[], Any], until: float = math.inf) -> None:
        """Wait until a condition holds, or until a time of the monotonic clock."""
        while not condition() and (seconds := until - time.monotonic()) > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(
                    self._change.wait(), None if math.isinf(seconds) else seconds
                )

    def _note_change(self) -> None:
        """Wake all coroutines that wait for a change."""
        self._change.set()
        self._change = asyncio.Event()


def _large_files(folder: Path, run: Path) -> Iterator[Path]:
    """Yield the files of a job's folder that are too large for Ray to distribute."""
    for path, folders, files in os.walk(folder):
        inner = [Path(path, name) for name in folders if not name.startswith(".")]
        folders[:] = [inside.name for inside in inner if inside not in (folder / "runs", run)]
        for file in (Path(path, name) for name in files):
            if file.is_file() and file.stat().st_size > _MOST_FILE_BYTES:
                yield file


def _in_words(error: Exception, seconds: float = _SILENT_SECONDS) -> str:
    """Describe an error of Ray, or of an actor, in a clause."""
    if isinstance(error, TimeoutError):
        return f"it did not answer within {seconds:g} s"
    cause = getattr(error, "cause", None) or error
    kind = "" if isinstance(cause, FlstreamError) else f"{type(cause).__name__}: "
    return quotable(kind + " ".join(str(cause).split()).rstrip("."), MOST_OF_AN_ERROR)


def main(server: socket.socket, job: Job, run: RunDirectory) -> None:
    """Run the driver's process, with the other end of a pipe to the server."""
    with run.log("ray").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # The server says what stays behind, and .rayignore does.
    os.environ.setdefault("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "1")

    async def drive() -> None:
        await _Driver(Connection(server.detach()), job, run).serve()

    asyncio.run(drive())
