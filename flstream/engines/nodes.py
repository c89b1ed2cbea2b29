"""The nodes of a run, as its launcher has them: how each joins, and one connection to its agent."""

from __future__ import annotations

import math
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

from msgspec.structs import replace

from flstream.engines.job_archive import JobArchive
from flstream.engines.node_channel import NodeChannel
from flstream.engines.node_messages import (
    AGENT,
    BEAT_SECONDS,
    SILENT_SECONDS,
    Beat,
    FromNode,
    JobWanted,
    NodeHello,
    NodeJob,
    NodeReady,
    NodeRefused,
    NodeUnfit,
    ToNode,
)
from flstream.engines.processes import FORK_SERVER
from flstream.errors import ProtocolError, SimulationError, StreamingError
from flstream.telemetry.events import NodeLost
from flstream.telemetry.machine import this_machine
from flstream.telemetry.memory import NodeMemory
from flstream.text import quotable
from flstream.transport.messages import PATIENCE
from flstream.transport.sockets import SocketChannel

# Beats by which a clock is judged; one that somebody sets is known after as many seconds.
_BEATS_OF_CLOCK = 60
# What is no part of a name that is printed and written to files, and the longest name.
_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_NAME = 64
# Seconds for an agent to unpack the job and to begin its fork server.
_READY_SECONDS = 120.0


class NodeWorker:
    """A worker on a node.

    Attributes:
        number: Number of the worker, which no other one of the run has.
        name: Name of the worker.
        pid: Pid of its process on the node; 0 before it runs.
        ends: The launcher's ends of its connections, by their names.
        failure: Why it was not started; None if it was, or may be.
        has_ended: Whether its process has ended, or its node is lost.
    """

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.pid = 0
        self.ends: dict[str, socket.socket] = {}
        self.failure: str | None = None
        self.has_ended = False

    def end(self, failure: str | None = None) -> None:
        """End its connections, of which the server has copies, so that the server sees it."""
        self.has_ended = True
        self.failure = self.failure or failure
        for end in self.ends.values():
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.ends.clear()


class Node:
    """A node that has joined a run. One thread receives from it, and any thread sends to it.

    Args:
        channel: Connection to its agent, which has proven that it has the key.

    Attributes:
        hello: What the agent says of the node.
        name: Name of the node in the run; that of its machine at first.
        workers: Its workers that have not ended, by number. The engine guards them.
        failures: How many workers in a row it could not start. The engine guards it.
        processes: Names of all processes of the run that it has had.
        room: How many workers it has room for.
        sees_run: Whether it sees the run directory.
    """

    def __init__(self, channel: SocketChannel) -> None:
        self._channel: NodeChannel[FromNode] = NodeChannel(channel, "a node", FromNode)
        hello = self._channel.receive(SILENT_SECONDS)
        if not isinstance(hello, NodeHello):
            raise ProtocolError(f"a node began with {type(hello).__name__}")
        self.hello = hello
        self.name = _ODD.sub("-", hello.host)[:_MOST_NAME] or "node"
        self._ahead: deque[float] = deque(maxlen=_BEATS_OF_CLOCK)
        self._note_time(hello.time)
        self.workers: dict[int, NodeWorker] = {}
        self.processes: set[str] = set()
        self.failures = 0
        self._fault = ""
        self.room = hello.cpus
        self.sees_run = True

    @property
    def load(self) -> float:
        """Workers for each that it has room for."""
        return len(self.workers) / self.room

    @property
    def seconds_ahead(self) -> float:
        """How far its clock is ahead of this one, by its last beats.

        What took long on its way makes the clock seem to be behind, so the largest value counts.
        """
        return max(self._ahead, default=0.0)

    def send(self, message: ToNode, seconds: float = SILENT_SECONDS) -> None:
        """Send a message.

        Raises:
            StreamingError: The agent is gone, or takes nothing for so many seconds.
        """
        self._channel.send(message, timeout=seconds)

    def await_ready(self, archive: JobArchive) -> str | None:
        """Wait until workers can be started; return why they cannot, or None.

        Args:
            archive: The job's folder, for a node that does not see the run directory.

        Raises:
            StreamingError: The agent is gone, or does not answer.
        """
        answer = self._channel.receive(_READY_SECONDS)
        if isinstance(answer, JobWanted):
            try:
                for each in archive.messages():
                    self.send(each, PATIENCE)
            except SimulationError as error:
                self.send(NodeRefused(str(error)))
                return str(error)
            answer = self._channel.receive(_READY_SECONDS)
        if isinstance(answer, NodeUnfit):
            return answer.reason
        if not isinstance(answer, NodeReady):
            raise ProtocolError(f"it sent {type(answer).__name__} before it was ready")
        self.sees_run = answer.sees_run
        return None

    def follow(self, take: Callable[[FromNode], None]) -> str:
        """Pass on what the agent sends, and say every second that this side lives.

        Returns:
            Clause that says why that has ended.
        """
        beaten_at, seen_at = 0.0, time.monotonic()
        try:
            while True:
                now = time.monotonic()
                if now >= beaten_at + BEAT_SECONDS:
                    beaten_at = now
                    self.send(Beat(time.time()))
                if self._channel.wait(max(beaten_at + BEAT_SECONDS - now, 0.0)):
                    message = self._channel.receive(SILENT_SECONDS)
                    seen_at = time.monotonic()
                    if isinstance(message, Beat):
                        self._note_time(message.time)
                    take(message)
                elif time.monotonic() >= seen_at + SILENT_SECONDS:
                    return f"it gave no sign of life for {SILENT_SECONDS:g} s"
        except StreamingError as error:
            return self._fault or str(error).replace(f"{self._channel.peer} ", "its agent ", 1)

    def own(self, memory: NodeMemory) -> NodeMemory:
        """Return what the node may say of memory: that of its own processes."""
        return NodeMemory(
            [
                each
                for each in memory.samples
                if each.process in self.processes and math.isfinite(each.time) and each.rss >= 0
            ],
            {name: peak for name, peak in memory.peaks.items() if name in self.processes},
            memory.peak_total_pss,
        )

    def _note_time(self, theirs: float) -> None:
        if math.isfinite(theirs):
            self._ahead.append(theirs - time.time())

    def give_up(self, fault: str) -> None:
        """End the connection, for which :meth:`follow` returns this fault as the reason."""
        self._fault = fault
        self._channel.shut()

    def close(self) -> None:
        """Close the connection, upon which the agent ends its workers and itself."""
        self._channel.close()


# Libraries whose versions decide bits, and flstream, whose messages have to agree.
_EQUAL = ("flstream", "python", "torch", "numpy")


class NodeHandshake:
    """Has nodes join a run. Threads share it, one for each node.

    Args:
        job: What all workers have in common; the name of the node is filled in.
        report: Called with a node that could not join.
        key_file: The file with the run's key, which is sent to nobody; None without one.
    """

    def __init__(
        self, job: NodeJob, report: Callable[[NodeLost], None], key_file: Path | None = None
    ) -> None:
        self._job = job
        self._archive = JobArchive(Path(job.folder), Path(job.run), job.files, key_file)
        self._report = report
        self._machine = this_machine()
        self._naming = threading.Lock()
        self._names: set[str] = set()

    def join(self, channel: SocketChannel) -> Node | None:
        """Have a node join; return None if it cannot, of which both sides are told.

        Args:
            channel: Connection to its agent, which has proven that it has the key.
        """
        try:
            node = Node(channel)
        except StreamingError:
            return None
        node.name = self._new_name(node.name)
        node.processes |= {f"{node.name}/{each}" for each in (AGENT, FORK_SERVER)}
        try:
            reason = self._refusal(node.hello)
            if reason is None:
                if self._job.gpus:
                    node.room = min(node.room, node.hello.gpus // self._job.gpus)
                node.send(replace(self._job, node=node.name))
                reason = node.await_ready(self._archive)
            else:
                node.send(NodeRefused(reason))
        except StreamingError as error:
            reason = str(error)
        if reason is None:
            return node
        why = f"it could not join: {quotable(reason)}"
        self._report(NodeLost(node=node.name, reason=why, is_refused=True))
        return None

    def other_processor(self, node: Node) -> str:
        """Return the name of a node's processor, if it is another one than that of this machine."""
        return node.hello.processor if node.hello.processor != self._machine.processor else ""

    def close(self) -> None:
        """Let go of what nodes are sent; none may join any more."""
        self._archive.close()

    def _new_name(self, host: str) -> str:
        """Return the name of a machine, with a number if another node of the run has had it."""
        names = (host if number == 1 else f"{host}-{number}" for number in count(1))
        with self._naming:
            name = next(each for each in names if each not in self._names)
            self._names.add(name)
        return name

    def _refusal(self, hello: NodeHello) -> str | None:
        """Return why a node cannot join, or None."""
        ours = self._machine.versions
        for name in _EQUAL:
            here, there = ours.get(name, "none"), hello.versions.get(name, "none")
            if here != there:
                return (
                    f"{hello.host} has {name} {there}, and the run {here}; install the same, since "
                    "other versions may give other bits"
                )
        each = self._job.gpus
        if each and hello.gpus < each:
            return f"{hello.host} has {hello.gpus} GPUs, and a worker takes {each} (engine.gpus)"
        if hello.cpus < 1:
            return f"{hello.host} has room for {hello.cpus} workers; give at least 1 (--cpus)"
        return None
