"""Where the workers of a run come from, and what each of them is started with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from flstream.client.code import train_code
from flstream.client.worker_info import WorkerInfo
from flstream.engines.engine import Engine, WorkerSockets
from flstream.engines.gpus import GpuDealer, visible_gpus
from flstream.engines.join import JoinEngine, JoinSettings, NodeReports
from flstream.engines.key_file import new_key_file
from flstream.engines.local import LocalEngine
from flstream.engines.processes import ProcessHost
from flstream.engines.ray import RayCluster
from flstream.errors import UsageError
from flstream.job import Job
from flstream.runs.run_directory import RunDirectory
from flstream.server.stream_settings import stream_settings
from flstream.simulation.inline import InlineHost
from flstream.simulation.node import node_job
from flstream.simulation.worker_process import worker_main
from flstream.telemetry.memory import MemorySampler
from flstream.transport.authentication import StartToken
from flstream.transport.channel import AbortSignal


def start_engine(
    job: Job,
    run: RunDirectory,
    info: Callable[[str], WorkerInfo],
    host: ProcessHost,
    sampler: MemorySampler,
    reports: NodeReports,
    stop: AbortSignal,
) -> Engine:
    """Create the engine that a job names, and wait until it has what workers run on.

    Args:
        job: The job.
        run: Its run directory.
        info: Returns the facts about a worker of a name.
        host: Process host of this machine, prepared for the job.
        sampler: Sampler of the memory of this machine's processes.
        reports: Who is told of nodes.
        stop: Signal that stops the run.

    Raises:
        UsageError: The job names an address or a file that cannot be used.
        SimulationError: Too few nodes joined in time.
        AbortedError: The run is being stopped.
    """
    if not job.engine.is_local:
        return _start_nodes(job, run, info, reports, stop)
    code, threads = train_code(job.train), job.clients.threads
    gpus = GpuDealer(visible_gpus(), job.engine.gpus)

    def start(name: str, end: WorkerSockets) -> tuple[int, int]:
        facts = gpus.equip(info(name), name)
        if isinstance(host, InlineHost):
            return 0, host.start_thread(name, worker_main, facts, run, code, threads, end)
        return host.start(name, worker_main, facts, run, code, threads, end), 0

    kill = host.end_thread if isinstance(host, InlineHost) else None
    return LocalEngine(start, sampler, host.exit_code, gpus.room, kill)


def fitted(job: Job, engine: Engine) -> Job:
    """Return a job with as many workers as there is room for, where it does not say how many.

    Raises:
        UsageError: It has more workers than there are GPUs for.
    """
    room, clients = engine.room, job.clients
    if room is None:
        return job
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
    info: Callable[[str], WorkerInfo],
    reports: NodeReports,
    stop: AbortSignal,
) -> Engine:
    """Create the engine of nodes that join, and wait for them."""
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
        engine = JoinEngine(settings, node_job(job, run), info, reports, resources.close)
    except BaseException:
        resources.close()
        raise
    try:
        if cluster is not None:
            cluster.join(engine.address, settings.key)
        engine.await_nodes(stop)
    except BaseException:
        engine.close()
        raise
    return engine


def worker_info(job: Job, run: RunDirectory, name: str) -> WorkerInfo:
    """Return the facts about the run and a worker of a name."""
    is_own, gpus = job.clients.workers == job.clients.count, job.clients.gpus
    return WorkerInfo(
        name=name,
        site=name if is_own else None,
        index=job.clients.site_names.index(name) if is_own else None,
        job=job.name,
        clients=job.clients.count,
        rounds=job.planned_rounds,
        seed=job.seed,
        sites_folder=str(run.sites),
        job_folder=str(job.folder),
        gpus=gpus[job.clients.worker_names.index(name) % len(gpus)] if gpus else None,
        site_args=job.clients.args,
        model_args=job.model.args,
        alias=job.train.alias,
        exchange_format=job.train.exchange_format,
        streaming=stream_settings(job, job.train.exchange_format),
        include=job.aggregation.include,
        exclude=job.aggregation.exclude,
        optimizer_state=job.train.optimizer_state,
        filters_up=job.filters.up,
        filters_down=job.filters.down,
        codecs_up=job.streaming.codecs.of_updates,
        codecs_down=job.streaming.codecs.of_models,
        links=job.network.links([name] if is_own else job.clients.site_names, job.seed),
    )
