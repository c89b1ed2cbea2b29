"""The engine of a run: where its workers come from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from flstream.engines.engine import Engine, WorkerSockets
from flstream.engines.gpus import GpuDealer, visible_gpus
from flstream.engines.local import LocalEngine
from flstream.engines.processes import ProcessHost
from flstream.errors import UsageError
from flstream.job import Job
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.events import NodeEvent
from flstream.telemetry.memory import MemorySampler
from flstream.transport.channel import AbortSignal

_WORKER = "flstream.simulation.worker_process:local_worker"


def start_engine(
    job: Job,
    run: RunDirectory,
    host: ProcessHost,
    sampler: MemorySampler,
    note_node: Callable[[NodeEvent], None],
    stop: AbortSignal,
) -> tuple[Engine, Job]:
    """Create the engine that a job names, and wait until it has what workers run on.

    Args:
        job: The job.
        run: Its run directory.
        host: Process host of this machine, prepared for the job.
        sampler: Sampler of the memory of processes.
        note_node: Function called with events of nodes, from any thread.
        stop: Signal that stops the run.

    Returns:
        The engine, and the job with as many workers as there is room for, where it does not say how
        many.

    Raises:
        UsageError: The job names an address or a file that cannot be used, or has more workers than
            there are GPUs for.
        SimulationError: Too few nodes joined in time.
        AbortedError: The run is being stopped.
    """
    if not job.engine.is_local:
        return _start_nodes(job, run, sampler, note_node, stop)
    gpus = GpuDealer(visible_gpus(), job.engine.gpus) if job.engine.gpus else None
    fitted = job if gpus is None or gpus.room is None else _fitted(job, gpus.room)
    if job.engine.is_inline:
        from flstream.simulation.inline import InlineHost

        assert isinstance(host, InlineHost)
        threads = host

        def start_thread(name: str, end: WorkerSockets) -> tuple[int, int]:
            dealt = gpus and gpus.deal(name)
            return 0, threads.start_thread(name, _WORKER, fitted, run, name, dealt, end)

        return LocalEngine(start_thread, sampler, host.exit_code, threads.end_thread), fitted

    def start(name: str, end: WorkerSockets) -> tuple[int, int]:
        return host.start(name, _WORKER, fitted, run, name, gpus and gpus.deal(name), end), 0

    return LocalEngine(start, sampler, host.exit_code), fitted


def _fitted(job: Job, room: int) -> Job:
    """Return a job with as many workers as there is room for, where it does not say how many."""
    clients = job.clients
    if clients.parallel is None and job.train.command is None:
        clients = clients.model_copy(update={"parallel": max(min(room, clients.count), 1)})
        job = job.model_copy(update={"clients": clients})
    if job.engine.gpus and clients.workers > room:
        raise UsageError(
            f"there are GPUs for {room} workers of {job.engine.gpus} (engine.gpus), and the job "
            f"has {clients.workers}; set clients.parallel to {room} at most"
        )
    return job


def _start_nodes(
    job: Job,
    run: RunDirectory,
    sampler: MemorySampler,
    note_node: Callable[[NodeEvent], None],
    stop: AbortSignal,
) -> tuple[Engine, Job]:
    """Create the engine of nodes that join, and wait for them."""
    from flstream.engines.join import JoinEngine, JoinSettings, NodeReports
    from flstream.engines.key_file import new_key_file
    from flstream.engines.ray import RayCluster
    from flstream.simulation.node import node_job
    from flstream.simulation.node_output import NodeOutput
    from flstream.simulation.worker_process import worker_info
    from flstream.transport.authentication import StartToken

    fitted = job
    reports = NodeReports(note_node, sampler.take, sampler.forget, NodeOutput(job, run).take)
    section, cluster, resources = job.engine, None, ExitStack()
    try:
        if section.type == "ray":
            log = run.path / "ray.log"
            room = section.cpus, section.gpus or 0
            cluster = resources.enter_context(RayCluster(section.address, *room, log, stop))
            bind, nodes = section.bind or f"{cluster.host}:0", section.nodes or cluster.nodes
            settings = JoinSettings(bind, StartToken.new(), nodes, section.wait)
        else:
            assert section.bind is not None
            assert section.key_file is not None
            key = resources.enter_context(new_key_file(section.key_file))
            nodes, wait = section.nodes or 1, section.wait
            settings = JoinSettings(section.bind, key, nodes, wait, section.key_file)

        engine = JoinEngine(
            settings,
            node_job(job, run),
            lambda name: worker_info(fitted, run, name),
            reports,
            resources.close,
        )
    except BaseException:
        resources.close()
        raise
    try:
        if cluster is not None:
            cluster.join(engine.address, settings.key)
        engine.await_nodes(stop)
        fitted = _fitted(job, engine.room)
    except BaseException:
        engine.close()
        raise
    return engine, fitted
