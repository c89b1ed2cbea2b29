"""The engine of a run: where its workers come from."""

from __future__ import annotations

from collections.abc import Callable

from flstream.engines.engine import Engine, WorkerSockets
from flstream.engines.gpus import GpuDealer, visible_gpus
from flstream.engines.local import LocalEngine
from flstream.engines.processes import ProcessHost
from flstream.errors import SimulationError, UsageError
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
        raise SimulationError("the engine ray is not there yet; set engine.type = local")
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
