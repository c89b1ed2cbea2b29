"""What a job will move and take, worked out before anything runs: bytes, requests, memory, disk.

What moves follows from the job and the model's layout exactly, as long as every site answers with
all tensors that are aggregated and nothing is lost on the way. Memory and disk are the most that
the exchange may need; training has gradients and data of its own, which nobody can foresee here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from flstream.aggregation.rules import Rule, rule_for
from flstream.aggregation.steps import plan_steps
from flstream.job import Job
from flstream.model.layout import Layout
from flstream.simulator.imports import library_imports
from flstream.simulator.rounds.plan import RoundPlan, plan_disk, plan_round
from flstream.simulator.rounds.settings import stream_settings
from flstream.streaming.receiver import StreamSettings

# What processes need beside models, measured as PSS: torch and the like, which they share, and
# what each has for itself.
_SHARED_BYTES = 240 << 20
_PROCESS_BYTES = 8 << 20
# What is shared besides where training code imports more, such as torch's optimisers.
_LIBRARIES_BYTES = 100 << 20
# The launcher, the fork server, the server, and the builder of the initial model.
_OTHER_PROCESSES = 4
# What streaming takes in a process, over its idle, whatever the size of the model. Most of it are
# pages of libraries that are used for the first time.
_STREAMING_BYTES = 24 << 20
# And, in the server, for each worker: threads, channels and messages.
_LINE_BYTES = 256 << 10

Mode = Literal["pull", "push", "native"]


class Traffic(NamedTuple):
    """What moves one way: see :class:`flstream.telemetry.events.Transfer`."""

    bytes: int = 0
    requests: int = 0
    chunks: int = 0

    def times(self, count: int) -> Traffic:
        """As much, so many times."""
        return Traffic(self.bytes * count, self.requests * count, self.chunks * count)

    def plus(self, other: Traffic) -> Traffic:
        """Both of them."""
        return Traffic(*map(sum, zip(self, other, strict=True)))


@dataclass(frozen=True)
class Forecast:
    """What a job will move and take. All sizes are in bytes.

    Attributes:
        model_bytes: of the model's body.
        tensors: how many it has.
        mode: how it moves; native also where a chunk size of 0 turns streaming off.
        chunk_size: longest frame on the way to the sites; 0 in native mode.
        sites: how many a round samples.
        workers: processes that run them.
        rounds: of the job.
        evaluations: how many of them are evaluated.
        down: a round's models on their way to the sites that train them.
        up: a round's updates.
        evaluation: where a round is evaluated, the models on their way to who scores them.
        server_bytes: the most the server takes over its idle.
        client_bytes: the most a client takes over its idle, for the exchange alone.
        processes: of the run, the launcher among them.
        total_bytes: all of them at one time, with what they have before they begin; memory that
            they share is counted once.
        round_disk_bytes: what a round writes before anything may be removed.
        disk_bytes: the most that is on disk at one time.
    """

    model_bytes: int
    tensors: int
    mode: Mode
    chunk_size: int
    sites: int
    workers: int
    rounds: int
    evaluations: int
    down: Traffic
    up: Traffic
    evaluation: Traffic
    server_bytes: int
    client_bytes: int
    processes: int
    total_bytes: int
    round_disk_bytes: int
    disk_bytes: int

    @property
    def run_down(self) -> Traffic:
        """All models on their way to the sites: ``transfer.down`` of the summary."""
        return self.down.times(self.rounds).plus(self.evaluation.times(self.evaluations))

    @property
    def run_up(self) -> Traffic:
        """All updates: ``transfer.up`` of the summary."""
        return self.up.times(self.rounds)


def plain_layout(model_bytes: int, tensors: int = 1) -> Layout:
    """The layout of a model of which only the size is known: float32, in tensors of one size.

    Args:
        model_bytes: rounded down to whole numbers.
        tensors: how many, 1 or more.
    """
    each, more = divmod(model_bytes // 4, tensors)
    return Layout.of((f"tensor.{i}", "F32", (each + (i < more),)) for i in range(tensors))


def forecast(job: Job, layout: Layout) -> Forecast:
    """Work out what a job will move and take.

    Args:
        job: the job.
        layout: of its model.

    Raises:
        UsageError: a pattern of ``aggregation.include`` or ``exclude`` is found in no tensor's
            name.
    """
    clients = job.clients
    rule, cohort = rule_for(job.aggregation), clients.cohort_size
    settings = stream_settings(job, job.train.exchange_format)
    plan = plan_round(job, layout.nbytes, cohort, is_ranked=rule.is_ranked)
    scoring = plan_round(job, layout.nbytes, clients.count, is_ranked=rule.is_ranked)
    update = _update_layout(layout, rule)
    disk = plan_disk(job, layout, cohort)
    # Beside the initial model.
    more = disk.more_checkpoints(0, 1)
    passing = sum(part.size for part in disk.of_a_round) - disk.model - disk.optimizer_state
    every = job.workflow.args.evaluate_every
    server, client = _memory(job, plan, settings, layout.nbytes, update.nbytes)
    processes = clients.workers + _OTHER_PROCESSES
    shared = _SHARED_BYTES + processes * _PROCESS_BYTES
    if job.train.source is not None and library_imports(job.train.source):
        shared += _LIBRARIES_BYTES
    one = _download(layout.nbytes, settings, settings.frame_size, pushed=settings.push)
    return Forecast(
        model_bytes=layout.nbytes,
        tensors=len(layout.tensors),
        mode=job.streaming.mode if settings.chunk_size else "native",
        chunk_size=settings.chunk_size,
        sites=cohort,
        workers=clients.workers,
        rounds=job.rounds,
        evaluations=-(-job.rounds // every) if every else 0,
        down=one.times(-(-cohort // plan.sites)),
        up=_updates(job, plan, layout, update, settings, rule),
        evaluation=one.times(-(-clients.count // scoring.sites)) if every else Traffic(),
        server_bytes=server,
        client_bytes=client,
        processes=processes,
        total_bytes=shared + server + clients.workers * client,
        round_disk_bytes=sum(part.size for part in disk.of_a_round),
        disk_bytes=disk.model + more * (disk.model + disk.optimizer_state) + passing,
    )


def _update_layout(layout: Layout, rule: Rule) -> Layout:
    """What travels of an update: the tensors that are aggregated."""
    selected = rule.selected(layout)
    return Layout.of((s.name, s.dtype, s.shape) for s in layout.tensors if s.name in selected)


def _download(nbytes: int, settings: StreamSettings, frame: int, *, pushed: bool) -> Traffic:
    """One download of so many bytes, in frames of at most ``frame``, or whole if that is 0."""
    if not nbytes:
        return Traffic()
    if not frame:
        return Traffic(nbytes, 1, 1)
    requests, chunks = -(-nbytes // settings.bytes_a_request), -(-nbytes // frame)
    if pushed:
        # A window of them goes without saying.
        requests = max(requests - settings.window, 0)
    return Traffic(nbytes, requests, chunks)


def _updates(
    job: Job,
    plan: RoundPlan,
    layout: Layout,
    update: Layout,
    settings: StreamSettings,
    rule: Rule,
) -> Traffic:
    """The updates of a round, as :mod:`flstream.simulator.rounds.training` has them fetched."""
    cohort = job.clients.cohort_size

    def frame_of(partial: int) -> int:
        """The longest frame in which a walk over so many takes them, 0 if they come whole."""
        if not settings.frame_size:
            return 0
        return plan_steps(
            layout,
            rule,
            updates=cohort,
            chunk_size=settings.frame_size,
            memory_budget=job.aggregation.memory_budget,
            partial=partial,
        ).frame

    def download(nbytes: int, limit: int, *, again: bool = False) -> Traffic:
        """One that takes frames of at most ``limit``. What is pushed comes as its sender likes."""
        sent = frame_of(0)
        pushed = settings.push and not again and bool(sent) and not limit % sent
        taken = settings._replace(chunk_size=limit)
        return _download(nbytes, taken, sent if pushed else limit, pushed=pushed)

    if not plan.own:
        whole, rest = divmod(cohort, plan.sites)
        batch = download(plan.sites * update.nbytes, settings.frame_size)
        return batch.times(whole).plus(download(rest * update.nbytes, settings.frame_size))
    is_partial = len(update.tensors) < len(layout.tensors)
    limit = frame_of(cohort if is_partial else 0)
    walks = download(update.nbytes, limit)
    for _ in range(1, _walks(rule)):
        walks = walks.plus(download(update.nbytes, limit, again=True))
    return walks.times(cohort)


def _walks(rule: Rule) -> int:
    """How often an update is fetched that stays in its worker: clipping has to know its norm."""
    return 1 if rule.clip_norm is None else 2


def _memory(
    job: Job, plan: RoundPlan, settings: StreamSettings, model: int, update: int
) -> tuple[int, int]:
    """The most that the server, and a client, take over their idle."""
    workers = job.clients.workers
    server = _STREAMING_BYTES + workers * _LINE_BYTES + job.aggregation.memory_budget
    if plan.in_memory:
        server += job.clients.cohort_size * update
    client = _STREAMING_BYTES + model
    if plan.sites > 1:
        # The model as it came, and the updates: one by one, and then in one piece.
        client += model + 2 * plan.sites * update
    if not settings.chunk_size:
        # The model serialised for each worker, either way, and the file that the one being made
        # comes from. A client has the model and the same serialised.
        server += (workers + 1) * model
        client += model
    return server, client
