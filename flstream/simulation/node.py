"""A node of a run: what its workers have in common, and the process of its agent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from flstream.client.code import LearnerCode, ScriptCode, TrainCode, train_code
from flstream.client.worker_info import WorkerInfo
from flstream.engines.agent import NodeAgent, join
from flstream.engines.engine import WorkerSockets
from flstream.engines.fork_server import needs_of
from flstream.engines.node_files import LeftFiles, NodeFiles, digests_of
from flstream.engines.node_messages import NodeJob
from flstream.engines.processes import ProcessHost
from flstream.job import Job
from flstream.job.imports import own_files
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.interruption import STOPS, handling
from flstream.transport.channel import Signal

_WORKER = "flstream.simulation.worker_process:worker_main"


def node_job(job: Job, run: RunDirectory) -> NodeJob:
    """Return what the workers of all nodes have in common; the engine fills in the rest."""
    code = train_code(job.train)
    own = [named for named in job.own_code() if named.key.startswith(("filters", "streaming"))]
    sources = [job.train.source, *(named.file for named in own)]
    common = NodeJob(
        run=str(run.path),
        folder=str(job.folder),
        variables=needs_of(job),
        threads=job.clients.threads,
        files=digests_of(path for each in sources if each for path in own_files(each, job.folder)),
        gpus=job.engine.gpus,
    )
    if isinstance(code, LearnerCode):
        return replace(common, learner=code.named, args=code.arguments)
    args = code.args if isinstance(code.args, str) else dict(code.args)
    command = None if code.command is None else list(code.command)
    return replace(common, script=str(code.path), args=args, command=command)


class NodeSettings(NamedTuple):
    """What a machine joins a run with.

    Attributes:
        address: Where the run has nodes join, ``HOST:PORT``.
        key_file: The file with its key.
        cpus: How many workers this machine has room for.
        wait: Seconds to wait for the run to begin.
        folder: Absolute path of a folder for the files of a run whose directory this machine does
            not see, which are kept; None for a temporary one.
    """

    address: str
    key_file: Path
    cpus: int
    wait: float
    folder: Path | None = None


def run_node(
    settings: NodeSettings, host: ProcessHost, on_joined: Callable[[NodeFiles], None]
) -> LeftFiles:
    """Join a run, and run its workers on this machine until it is over.

    SIGINT, SIGTERM and SIGHUP end it.

    Args:
        settings: Where, and with what.
        host: Process host that is begun, but not prepared; its owner closes it.
        on_joined: Called once the run has taken the node.

    Returns:
        What training code has left in working folders that are gone.

    Raises:
        UsageError: The address is none, or the key file has no key.
        SimulationError: There is no such run, or it cannot use this node, or it is gone.
        AbortedError: A signal ended it.
    """
    with (
        closing(Signal()) as stop,
        handling(STOPS, lambda *_: stop.set()),
        closing(join(settings.address, settings.key_file, settings.wait, stop)) as channel,
    ):
        agent = NodeAgent(channel, settings.address, host, settings.cpus)
        files = agent.files(settings.folder, stop)
        try:
            run, code = RunDirectory(Path(files.job.run)), _code_of(files.job)
            threads = files.job.threads

            def start(number: int, info: WorkerInfo, end: WorkerSockets) -> int:
                facts = files.new_worker(info)
                return host.start(str(number), _WORKER, facts, run, code, threads, end)

            on_joined(files)
            agent.serve(start, files, stop)
        finally:
            left = files.close()
        return left


def _code_of(job: NodeJob) -> TrainCode:
    if job.learner:
        assert not isinstance(job.args, str)
        return LearnerCode(job.learner, job.args)
    return ScriptCode(Path(job.script), job.args, job.command)
