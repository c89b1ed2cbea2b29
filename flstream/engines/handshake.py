"""How a node joins a run: it says what it is, and is told what its workers have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

from msgspec.structs import replace

from flstream.engines.job_archive import JobArchive
from flstream.engines.node_messages import AGENT, NodeHello, NodeJob, NodeRefused
from flstream.engines.nodes import Node
from flstream.engines.processes import FORK_SERVER
from flstream.errors import StreamingError
from flstream.telemetry.events import NodeLost
from flstream.telemetry.machine import this_machine
from flstream.text import quotable
from flstream.transport.sockets import SocketChannel

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
