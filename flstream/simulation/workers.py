"""The engine of a run: where its workers come from."""

from __future__ import annotations

from collections.abc import Callable

from flstream.engines.engine import Engine
from flstream.engines.gpus import GpuDealer, visible_gpus
from flstream.engines.local import LocalEngine
from flstream.engines.processes import ProcessHost
from flstream.errors import UsageError
from flstream.job import Job
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.events import Emit
from flstream.transport.channel import AbortSignal

_WORKER = "flstream.simulation.worker_process:local_worker"


def start_engine(
    job: Job,
    run: RunDirectory,
    host: ProcessHost,
    on_started: Callable[[str, int], None],
    emit: Emit,
    stop: AbortSignal,
) -> tuple[Engine, Job]:
    """Create the engine that a job names, and wait until it has what workers run on.

    Args:
        job: The job.
        run: Its run directory.
        host: Process host of this machine.
        on_started: Function called with the name and the pid of each process of this machine.
        emit: Function called with events of nodes, from any thread.
        stop: Signal that stops the run, which the engine sets once it can have no workers any more.

    Returns:
        The engine, and the job with as many workers as there is room for, where it does not say how
        many.

    Raises:
        UsageError: The job has more workers than there are GPUs for, or a node cannot be used.
        SimulationError: There is no such cluster, or it has too few nodes.
        AbortedError: The run is being stopped.
    """
    if not job.engine.is_local:
        from flstream.engines.ray import RayEngine

        engine = RayEngine(job, run, host, emit, stop)
        on_started("ray-driver", engine.driver.pid)
        try:
            engine.job = _fitted(job, engine.room)
        except BaseException:
            engine.close()
            raise
        return engine, engine.job
    gpus = GpuDealer(visible_gpus(), job.engine.gpus)
    if gpus.room is not None:
        job = _fitted(job, gpus.room)
    return LocalEngine(host, _WORKER, (job, run), gpus, on_started), job


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
