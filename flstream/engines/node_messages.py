"""The messages between the launcher of a run and the agents on its nodes.

Both sides have proven that they have the key of the run before the first of them. The agent begins
with :class:`NodeHello`; the launcher answers :class:`NodeJob` or :class:`NodeRefused`. An agent
that does not see the run directory then asks with :class:`JobWanted` for the job's folder, which
comes as :class:`JobArchived` and its pieces, or is refused likewise. The agent ends with
:class:`NodeReady` or :class:`NodeUnfit`. From then on each side sends :class:`Beat` every second,
so that a node, or a launcher, that is gone without a sign is known by its silence.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from flstream.client.worker_info import WorkerInfo
from flstream.telemetry.memory import NodeMemory

AGENT = "agent"
"""Role of a node's agent, beside those of the connections of workers; and its process's name."""

NONCE_FILE = ".nonce"
"""File of a run directory by which a node finds out whether it sees the same folder."""

BEAT_SECONDS = 1.0
"""Seconds between two beats of each side."""

SILENT_SECONDS = 10.0
"""Seconds without a message after which the other side is given up."""


PIECE_BYTES = 1 << 20
"""Most bytes of a file in one message."""

# What an agent says is looked at before it is believed.
Number = Annotated[int, msgspec.Meta(ge=1, lt=2**62)]
Pid = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
Count = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
Name = Annotated[str, msgspec.Meta(max_length=1000)]
Reason = Annotated[str, msgspec.Meta(max_length=4000)]
Bytes = Annotated[bytes, msgspec.Meta(max_length=PIECE_BYTES)]


class NodeHello(msgspec.Struct, tag=True, frozen=True):
    """Agent: what the node is.

    Attributes:
        host: Name of the machine.
        cpus: Number of workers that it has room for.
        gpus: Number of its GPUs.
        versions: Versions of flstream, Python and the libraries that decide bits, by name.
        processor: Name of the processor.
        time: Seconds since the epoch by the node's clock.
    """

    host: Name
    cpus: Count
    gpus: Count
    versions: dict[Name, Name]
    processor: Name
    time: float


class NodeRefused(msgspec.Struct, tag=True, frozen=True):
    """Launcher: the node cannot join, for a reason."""

    reason: str


class NodeJob(msgspec.Struct, tag=True, frozen=True):
    """Launcher: what all workers of the node have in common.

    Attributes:
        run: Path of the run directory.
        folder: Path of the job's folder.
        files: Digests of the files of training code, by their paths: a node works with the same
            ones.
        variables: Environment variables of the workers.
        threads: Number of torch's threads.
        gpus: Number of GPUs that each worker gets; None leaves all visible.
        node: Name of the node in the run.
        nonce: What the file :data:`NONCE_FILE` in ``run`` has in it, if the node sees the same
            folder.
        script: Path of the training script; empty for a learner.
        learner: Place of the learner's class; empty for a script.
        args: Arguments of all sites, of the script or the learner.
        command: Words of the command that starts the script; None to run it in the worker itself.
    """

    run: str
    folder: str
    variables: dict[str, str]
    threads: int
    files: dict[str, str] = {}
    gpus: int | None = None
    node: str = ""
    nonce: str = ""
    script: str = ""
    learner: str = ""
    args: dict[str, Any] | str = ""
    command: list[str] | None = None


class JobWanted(msgspec.Struct, tag=True, frozen=True):
    """Agent: the node does not see the run directory, and needs the job's folder."""


class JobArchived(msgspec.Struct, tag=True, frozen=True):
    """Launcher: the job's folder follows as an archive, in pieces.

    Attributes:
        digest: xxh3-128 of the archive, 32 hexadecimal digits.
        bytes: Its length.
    """

    digest: str
    bytes: int


class ArchivePiece(msgspec.Struct, tag=True, frozen=True):
    """Launcher: the next bytes of an archive, :data:`PIECE_BYTES` unless it ends with them."""

    data: bytes


class NodeReady(msgspec.Struct, tag=True, frozen=True):
    """Agent: workers can be started.

    Attributes:
        sees_run: Whether the node sees the run directory.
    """

    sees_run: bool = True


class NodeUnfit(msgspec.Struct, tag=True, frozen=True):
    """Agent: no worker can be started here, for a reason."""

    reason: Reason


class StartWorker(msgspec.Struct, tag=True, frozen=True):
    """Launcher: start a worker, which dials four connections.

    Attributes:
        number: Number of the worker, which no other one of the run has.
        info: Facts about it.
        keys: The key of the start token of each connection, by its name in
            :class:`~flstream.engines.engine.WorkerSockets`.
    """

    number: int
    info: WorkerInfo
    keys: dict[str, bytes]


class WatchWorker(msgspec.Struct, tag=True, frozen=True):
    """Launcher: these processes count as a worker, as far as memory goes.

    Attributes:
        name: Name of the worker.
        pid: Pid of the process in which its training code has the tasks.
        others: Pids of its other processes.
    """

    name: str
    pid: int
    others: list[int]


class WorkerRuns(msgspec.Struct, tag=True, frozen=True):
    """Agent: a worker was started, and its connections are open."""

    number: Number
    pid: Pid


class WorkerEnded(msgspec.Struct, tag=True, frozen=True):
    """Agent: a worker has ended, or could not be started.

    Attributes:
        number: Number of the worker.
        status: Its exit status, or minus the signal that killed it; None if it was not started.
        reason: Why it could not be started.
    """

    number: Number
    status: Annotated[int, msgspec.Meta(ge=-255, le=255)] | None = None
    reason: Reason = ""


class Output(msgspec.Struct, tag=True, frozen=True):
    """Agent: what processes of a node that does not see the run directory have written.

    Attributes:
        kind: Whether it is more of the log of a worker or of a site, or all of the file in which
            a site records how its data is split.
        name: Name of the worker or the site.
        data: The bytes.
    """

    kind: Literal["worker log", "site log", "split"]
    name: Name
    data: Bytes


class KillWorker(msgspec.Struct, tag=True, frozen=True):
    """Launcher: kill a worker, and what it has started."""

    number: int


class Beat(msgspec.Struct, tag=True, frozen=True):
    """Either side: it lives.

    Attributes:
        time: Seconds since the epoch by the sender's clock.
        memory: Of an agent, what its sampler has measured since the last one.
    """

    time: float
    memory: NodeMemory = NodeMemory()


class LeaveRun(msgspec.Struct, tag=True, frozen=True):
    """Launcher: the run is over.

    Attributes:
        seconds: Time that workers have to end by themselves.
    """

    seconds: float


ToNode = (
    NodeRefused
    | NodeJob
    | JobArchived
    | ArchivePiece
    | StartWorker
    | WatchWorker
    | KillWorker
    | Beat
    | LeaveRun
)
FromNode = NodeHello | JobWanted | NodeReady | NodeUnfit | WorkerRuns | WorkerEnded | Output | Beat
