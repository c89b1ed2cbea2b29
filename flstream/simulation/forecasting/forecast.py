"""Forecast of a job's traffic, memory and disk, from the job and its model's layout.

It is an estimate. Counted are models and updates as they travel and wait, the buffers of streaming
and of the fold, and what processes have after their imports, which is measured. Not counted are
gradients, the optimizer's state, activations and data of the training, nor what libraries load at
their first use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from flstream.aggregation.accountant import Accounting, epsilon
from flstream.aggregation.elements import FLOATS
from flstream.aggregation.rules import rule_for
from flstream.client.personal_part import part_of
from flstream.filters.chain import remaining
from flstream.job import Job
from flstream.model.joined import MAIN, joint_layout, zeros_beside
from flstream.model.layout import Layout
from flstream.server.stream_settings import stream_settings
from flstream.server.task_plan import plan_disk

# Private memory, beside what was measured with jobs/: of the launcher (52 MiB), of each process
# that is forked (9 to 13 MiB), and of the server or a worker for streaming (10 to 15 MiB).
_LAUNCHER_BYTES = 64 << 20
_FORKED_BYTES = 16 << 20
_STREAMING_BYTES = 24 << 20
# The server, and the process that builds the model or feeds a tracker.
_OTHER_PROCESSES = 2


class Imports(NamedTuple):
    """Memory of what a job's processes import, in bytes.

    Attributes:
        shared: Memory of the fork server, which all processes share.
        own: Memory of further imports of the training code, which each worker has for itself.
    """

    shared: int = 240 << 20
    own: int = 0


@dataclass(frozen=True)
class Forecast:
    """Estimated needs of a job; sizes are in bytes.

    Attributes:
        model_bytes: Size of the model.
        tensors: Number of tensors of the model.
        mode: Transfer mode; native also where a chunk size of 0 turns streaming off.
        chunk_size: Largest chunk; 0 in native mode.
        down_bytes: Models sent to the sites that train in a round.
        up_bytes: Updates sent to the server in a round.
        server_bytes: Peak memory of the server over its idle.
        client_bytes: Peak memory of a worker over its imports, for the exchange alone.
        worker_bytes: Peak memory of a worker that it shares with no other process.
        imports: Memory of imports.
        server_side_bytes: Peak memory of all processes together but the workers.
        total_bytes: Peak memory of all processes together.
        disk_bytes: Peak size of all files together.
        epsilon: Privacy spent by all rounds; None for a job that is not private.
    """

    model_bytes: int
    tensors: int
    mode: str
    chunk_size: int
    down_bytes: int
    up_bytes: int
    server_bytes: int
    client_bytes: int
    worker_bytes: int
    imports: Imports
    server_side_bytes: int
    total_bytes: int
    disk_bytes: int
    epsilon: float | None

    def bytes_here(self, job: Job) -> int:
        """Return the peak memory of the launcher's machine, which workers may not be on."""
        return self.total_bytes if job.engine.is_local else self.server_side_bytes


def plain_layout(model_bytes: int, tensors: int = 1) -> Layout:
    """Return the layout of a float32 model with tensors of equal size.

    Args:
        model_bytes: Size of the model in bytes, rounded down to a multiple of 4.
        tensors: Number of tensors, 1 or more.
    """
    least, more = divmod(model_bytes // 4, tensors)
    return Layout.of((f"tensor.{i}", "F32", (least + (i < more),)) for i in range(tensors))


def forecast(job: Job, layout: Layout, imports: Imports = Imports()) -> Forecast:  # noqa: B008
    """Forecast a job's traffic, memory and disk.

    Args:
        job: The job.
        layout: Layout of the job's model.
        imports: Memory of imports; by default that of a script that imports torch alone.

    Raises:
        UsageError: A pattern of ``aggregation``, of personal tensors or of a filter matches no
            tensor's name.
    """
    workers, cohort = job.clients.workers, job.clients.cohort_size
    bodies = job.stages[0].args.bodies
    beside = {name: zeros_beside(layout, FLOATS).layout for name in bodies}
    whole = joint_layout({MAIN: layout, **beside}) if bodies else layout
    update_bytes = _update_bytes(job, layout) + whole.nbytes - layout.nbytes
    settings = stream_settings(job, job.train.exchange_format)
    server = _STREAMING_BYTES + min(job.aggregation.memory_budget, cohort * update_bytes)
    client = _STREAMING_BYTES + whole.nbytes
    if not settings.chunk_size:  # the server serialises a model for each worker, and for a file
        server, client = server + (workers + 1) * whole.nbytes, client + whole.nbytes
    worker = imports.own + _FORKED_BYTES + client
    others = _LAUNCHER_BYTES + _OTHER_PROCESSES * _FORKED_BYTES
    server_side = imports.shared + others + server
    return Forecast(
        model_bytes=layout.nbytes,
        tensors=len(layout.tensors),
        mode=job.streaming.mode if settings.chunk_size else "native",
        chunk_size=settings.chunk_size,
        down_bytes=cohort * whole.nbytes,
        up_bytes=cohort * update_bytes,
        server_bytes=server,
        client_bytes=client,
        worker_bytes=worker,
        imports=imports,
        server_side_bytes=server_side,
        total_bytes=server_side + workers * worker,
        disk_bytes=_disk_bytes(job, whole),
        epsilon=_epsilon(job),
    )


def _update_bytes(job: Job, layout: Layout) -> int:
    """Return the size of the tensors that are aggregated, not filtered out, and not personal."""
    sent = rule_for(job.aggregation).selected(layout)
    parts = [part_of(stage.args.personal_tensors, is_beside=False) for stage in job.stages]
    personal = [frozenset[str]() if part is None else part.names(layout) for part in parts]
    remaining(layout, job.filters.down, "down")
    unfiltered = remaining(layout, job.filters.up, "up")
    return sum(spec.nbytes for spec in unfiltered.tensors if spec.name in sent - personal[0])


def _disk_bytes(job: Job, whole: Layout) -> int:
    """Return the size of all checkpoints of a run, with a round's files that are passing."""
    plan = plan_disk(job, whole, job.clients.cohort_size)
    checkpoint = plan.model + plan.optimizer_state
    passing = sum(item.size for item in plan.of_a_round) - checkpoint
    return plan.model + plan.more_checkpoints(0, 1) * checkpoint + passing


def _epsilon(job: Job) -> float | None:
    """Return the privacy spent by rounds that each fold one draw of sites."""
    if not job.privacy.is_on:
        return None
    accounting = Accounting.of(job)
    return epsilon(accounting, {accounting.population: job.planned_rounds})
