"""The engine of nodes that join: on each, somebody or something runs ``flstream join``."""

from __future__ import annotations

import secrets
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from flstream.client.worker_info import WorkerInfo
from flstream.engines.engine import StartedWorker, WorkerSockets
from flstream.engines.node_messages import (
    AGENT,
    NONCE_FILE,
    Beat,
    FromNode,
    KillWorker,
    LeaveRun,
    NodeJob,
    Output,
    StartWorker,
    WatchWorker,
    WorkerEnded,
    WorkerRuns,
)
from flstream.engines.nodes import Node, NodeHandshake, NodeWorker
from flstream.errors import SimulationError, StreamingError, WorkerLostError
from flstream.telemetry.events import NodeEvent, NodeJoined, NodeLost, NodesAwaited
from flstream.telemetry.memory import NodeMemory
from flstream.text import quotable, signal_name
from flstream.transport.authentication import StartToken
from flstream.transport.channel import AbortSignal, Deadline, Signal, wait_readable
from flstream.transport.sockets import SocketChannel
from flstream.transport.tcp import Admission, TcpListener

# Seconds in which a worker has to have dialled its connections, and its tokens are of use.
_START_SECONDS = 30.0
# Seconds for a worker's process to end before its replacement is started.
_PREDECESSOR_SECONDS = 10.0
# Seconds for an agent to take a message to end something.
_KILL_SECONDS = 2.0
# Seconds for an agent to end its workers and to say so.
_END_SECONDS = 3.0
# Workers in a row that a node may fail to start until it is given up.
_MOST_FAILURES = 3


class NodeReports(NamedTuple):
    """Functions that take what is known of nodes. Any thread may call them.

    Attributes:
        event: Takes events of nodes.
        memory: Takes the name of a node, what its sampler has measured, and how many seconds its
            clock is ahead.
        lost: Takes the name of a node of whose memory nothing more comes.
        output: Takes what processes of a node have written that does not see the run directory.
    """

    event: Callable[[NodeEvent], None]
    memory: Callable[[str, NodeMemory, float], None]
    lost: Callable[[str], None]
    output: Callable[[Output], None]


class JoinSettings(NamedTuple):
    """Where and how nodes join.

    Attributes:
        address: Address to bind, ``HOST:PORT``.
        key: What they need to join.
        nodes: How many are waited for.
        wait: Seconds to wait for them, and for one where none is left.
        key_file: The file with the key, for nodes to be started with; None where the engine has
            them join.
    """

    address: str
    key: StartToken
    nodes: int
    wait: float
    key_file: Path | None = None


class JoinEngine:
    """Starts workers on the nodes that have joined.

    Args:
        settings: Where nodes join, and how many are waited for.
        job: What all workers have in common; the name of the node and the nonce are filled in.
        info: Returns the facts about a worker of a name.
        reports: Who is told of nodes.
        on_closed: Called once it is closed.

    Attributes:
        address: Where nodes join, with the port.

    Raises:
        UsageError: The address cannot be listened on.
    """

    def __init__(
        self,
        settings: JoinSettings,
        job: NodeJob,
        info: Callable[[str], WorkerInfo],
        reports: NodeReports,
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._nonce_file = Path(job.run) / NONCE_FILE
        job = replace(job, nonce=secrets.token_hex())
        self._handshake = NodeHandshake(job, self._note_refusal, settings.key_file)
        self._refusal = ""
        self._info = info
        self._deals_gpus = bool(job.gpus)
        self._reports = reports
        self._on_closed = on_closed
        self._changed = threading.Condition()  # guards all that follow
        self._nodes: list[Node] = []
        self._workers: dict[int, NodeWorker] = {}
        self._causes: dict[str, str] = {}
        # Exit codes of workers that have ended, by name.
        self._codes: dict[str, int] = {}
        self._threads: list[threading.Thread] = []
        self._joining: set[SocketChannel] = set()
        self._none_since: float | None = None  # since when no node may have another worker
        self._is_closing = False
        self._numbers = count(1)
        self._have_joined = Signal()
        try:
            self._nonce_file.write_text(job.nonce)
            self._listener = TcpListener(settings.address, self._connected)
        except BaseException:
            self._have_joined.close()
            with suppress(OSError):
                self._nonce_file.unlink()
            raise
        self.address = self._listener.address
        self._listener.admit("a node", AGENT, settings.key)

    def await_nodes(self, stop: AbortSignal) -> None:
        """Wait until as many nodes have joined as the job asks for.

        Raises:
            SimulationError: They did not in time.
            AbortedError: The run is being stopped.
        """
        wanted, seconds = self._settings.nodes, self._settings.wait
        command, key_file = "", self._settings.key_file
        if key_file is not None:
            command = f"flstream join {self.address} --key-file {shlex.quote(str(key_file))}"
        self._reports.event(NodesAwaited(nodes=wanted, command=command))
        fd = self._have_joined.fileno()
        if not wait_readable(fd, Deadline(seconds), stop, "the nodes"):
            with self._changed:
                there = len(self._nodes)
            reason = f"{there} of {wanted} nodes joined within {seconds:g} s (engine.wait)"
            if self._refusal:
                reason += f"; of the last one, {self._refusal}"
            elif command:
                reason += f"; each of them runs {command}"
            raise SimulationError(reason)

    @property
    def room(self) -> int:
        """How many workers the nodes of now have room for together."""
        with self._changed:
            return sum(node.room for node in self._nodes)

    def start(self, name: str) -> StartedWorker:
        """Start a worker on the node with the most room, and wait for its connections.

        A process that the worker had before is waited for first: two of them would write the same
        files, and take its GPUs.

        Raises:
            WorkerLostError: There is no node, or it is lost meanwhile, or cannot start the worker.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closing or all(w.name != name for w in self._workers.values()),
                _PREDECESSOR_SECONDS,
            )
            node = self._node_with_room()
            self._codes.pop(name, None)
            worker = NodeWorker(next(self._numbers), name)
            node.workers[worker.number] = self._workers[worker.number] = worker
            node.processes.add(name)
        tokens = {
            role: self._listener.admit(str(worker.number), role) for role in WorkerSockets._fields
        }
        try:
            keys = {role: token.key for role, token in tokens.items()}
            node.send(StartWorker(worker.number, self._info(name), keys))
            started = self._connected_worker(node, worker)
        except BaseException as error:
            self._note_failure(node, worker, error)
            raise
        finally:
            for token in tokens.values():
                self._listener.dismiss(token)
        with self._changed:
            node.failures = 0
        return started

    def watch(self, name: str, pid: int, others: Sequence[int]) -> None:
        """Have the agent sample the memory of a worker's processes together."""
        self._tell(lambda each: each.name == name, WatchWorker(name, pid, list(others)))

    def kill(self, number: int) -> None:
        """Have the agent kill a worker, unless it has ended."""
        self._tell(lambda each: each.number == number, KillWorker(number))

    def await_end(self, number: int, seconds: float) -> None:
        """Wait until the agent says that a worker has ended, for at most ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: number not in self._workers, seconds)

    def exit_code(self, name: str, seconds: float) -> int | None:
        """Return what the agent says of a worker's end, if it does so within ``seconds``."""
        with self._changed:
            # Of one whose node is lost, nobody will say how it has ended.
            self._changed.wait_for(
                lambda: all(each.name != name for each in self._workers.values()), seconds
            )
            return self._codes.get(name)

    @property
    def causes(self) -> Mapping[str, str]:
        """Why workers have ended, by name, of those that were killed or whose node was lost."""
        with self._changed:
            return dict(self._causes)

    def close(self, seconds: float = 0.0) -> None:
        """Let no node join any more, and have the agents end their workers and themselves."""
        with self._changed:
            is_second, self._is_closing = self._is_closing, True
            nodes = list(self._nodes)
            self._changed.notify_all()
        if is_second:
            return
        with suppress(OSError):
            self._nonce_file.unlink()
        self._listener.close()
        until = time.monotonic() + seconds + _END_SECONDS
        for node in nodes:
            with suppress(StreamingError):
                node.send(LeaveRun(seconds), _KILL_SECONDS)
        with self._changed:
            for channel in self._joining:
                channel.shut()
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0.0))
        for node in nodes:
            node.give_up("the run is over")
        for thread in threads:
            thread.join()
        self._handshake.close()
        self._have_joined.close()
        self._on_closed()

    def _tell(self, is_it: Callable[[NodeWorker], bool], message: WatchWorker | KillWorker) -> None:
        """Tell the agent of a worker something, unless the worker has ended."""
        with self._changed:
            nodes = [each for each in self._nodes if any(map(is_it, each.workers.values()))]
        for node in nodes:
            with suppress(StreamingError):  # its thread finds out
                node.send(message, _KILL_SECONDS)

    def _node_with_room(self) -> Node:
        """Return the node that is to have the next worker; wait for one if there is none."""
        seconds = self._settings.wait
        if not self._nodes_for_another():
            self._none_since = self._none_since or time.monotonic()
            left = self._none_since + seconds - time.monotonic()
            self._changed.wait_for(
                lambda: self._nodes_for_another() or self._is_closing, max(left, 0.0)
            )
        if self._is_closing:
            raise WorkerLostError("the run is over")
        nodes = self._nodes_for_another()
        if not nodes:
            what = "no node has free GPUs" if self._nodes else "no node is left"
            raise WorkerLostError(
                f"{what}, and none joined within {seconds:g} s (engine.wait); go on with "
                "--resume once there are nodes, or with --engine local"
            )
        self._none_since = None
        # One that could not start a worker would draw all others to it, as it has the most room.
        return min(nodes, key=lambda node: (node.failures, node.load))

    def _nodes_for_another(self) -> list[Node]:
        """Return the nodes that may have one more worker: they share CPUs, but no GPUs."""
        if not self._deals_gpus:
            return self._nodes
        return [node for node in self._nodes if len(node.workers) < node.room]

    def _connected_worker(self, node: Node, worker: NodeWorker) -> StartedWorker:
        """Wait until a worker runs, and all of its connections are there."""

        def is_settled() -> bool:
            is_there = worker.pid and worker.ends.keys() == set(WorkerSockets._fields)
            return bool(is_there) or worker.has_ended or self._is_closing

        with self._changed:
            in_time = self._changed.wait_for(is_settled, _START_SECONDS)
            if in_time and not worker.has_ended and not self._is_closing:
                ends = WorkerSockets(**{role: end.dup() for role, end in worker.ends.items()})
                return StartedWorker(worker.pid, ends, worker.number)
        late = f"it did not connect within {_START_SECONDS:g} s"
        reason = worker.failure or ("it has ended" if in_time else late)
        raise WorkerLostError(f"{worker.name} could not be started on {node.name}: {reason}")

    def _note_failure(self, node: Node, worker: NodeWorker, error: BaseException) -> None:
        """End what there is of a worker that could not be started, and give up a broken node."""
        with self._changed:
            worker.end()
            has_left = worker.number not in self._workers
            node.failures += 1
            is_broken = node.failures >= _MOST_FAILURES
        if not has_left:  # its agent says so once it has
            with suppress(StreamingError):
                node.send(KillWorker(worker.number), _KILL_SECONDS)
        if is_broken:
            node.give_up(f"it could not start {_MOST_FAILURES} workers in a row: {error}")

    def _connected(self, channel: SocketChannel, admission: Admission) -> None:
        """Take a connection whose other side has proven that it has the key, or a token."""
        if admission.role == AGENT:
            thread = threading.Thread(target=self._serve, args=(channel,), name="node", daemon=True)
            with self._changed:
                if self._is_closing:
                    channel.close()
                    return
                self._threads = [each for each in self._threads if each.is_alive()]
                self._threads.append(thread)
                self._joining.add(channel)
                thread.start()
            return
        self._listener.dismiss(admission.token)  # a token is of use once
        with self._changed:
            worker = self._workers.get(int(admission.name))
            if worker is None or worker.has_ended:
                channel.close()
                return
            worker.ends[admission.role] = channel.detach()
            self._changed.notify_all()

    def _serve(self, channel: SocketChannel) -> None:
        """Have a node join, and follow it to its end."""
        try:
            node = self._handshake.join(channel)
        except Exception as error:  # a defect, of which nobody else is to suffer
            node = None
            why = f"the launcher met a defect, {type(error).__name__}: {error}"
            self._report(NodeLost(node="a node", reason=why))
        with self._changed:
            self._joining.discard(channel)
            if node is None or self._is_closing:
                channel.close()
                return
            self._nodes.append(node)
            if len(self._nodes) >= self._settings.nodes:
                self._have_joined.set()
            self._changed.notify_all()
        reason = "its connection ended"
        try:
            processor = self._handshake.other_processor(node)
            self._report(
                NodeJoined(
                    node=node.name,
                    cpus=node.room,
                    other_processor=processor,
                    sees_run=node.sees_run,
                )
            )
            reason = node.follow(lambda message: self._take(node, message))
        except Exception as error:  # a defect, which is not to keep a dead node in the run
            reason = f"the launcher met a defect, {type(error).__name__}: {error}"
        finally:
            self._lose(node, reason)

    def _take(self, node: Node, message: FromNode) -> None:
        if isinstance(message, Beat):
            self._reports.memory(node.name, node.own(message.memory), node.seconds_ahead)
            return
        if isinstance(message, Output):
            if not node.sees_run:
                self._reports.output(message)
            return
        with self._changed:
            match message:
                case WorkerRuns(number, pid) if number in node.workers:
                    node.workers[number].pid = pid
                case WorkerEnded(number, status, reason) if number in node.workers:
                    worker = node.workers[number]
                    if status is not None:
                        self._codes[worker.name] = status
                    if status is not None and status < 0 and not self._is_closing:
                        how = signal_name(-status)
                        self._causes[worker.name] = (
                            f"{worker.name} was killed by {how} on {node.name}"
                        )
                    worker.end(quotable(reason) or None)
                    self._forget(node, worker)
            self._changed.notify_all()

    def _lose(self, node: Node, reason: str) -> None:
        """End the workers of a node that is gone."""
        with self._changed:
            self._nodes.remove(node)
            for worker in list(node.workers.values()):
                if not self._is_closing:
                    self._causes[worker.name] = (
                        f"{worker.name} was on node {node.name}, which was lost"
                    )
                worker.end(f"{node.name} was lost: {reason}")
                self._forget(node, worker)
            self._changed.notify_all()
        node.close()
        self._reports.lost(node.name)
        self._report(NodeLost(node=node.name, reason=reason))

    def _note_refusal(self, event: NodeLost) -> None:
        self._refusal = event.reason
        self._report(event)

    def _report(self, event: NodeEvent) -> None:
        if not self._is_closing:  # nodes that leave at the end are not lost
            self._reports.event(event)

    def _forget(self, node: Node, worker: NodeWorker) -> None:
        node.workers.pop(worker.number, None)
        self._workers.pop(worker.number, None)
