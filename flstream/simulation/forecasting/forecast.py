"""Forecast of a job's traffic, memory and disk, from the job and its model's layout.

The traffic is exact as long as every site answers with all tensors that are aggregated and nothing
is lost on the way. Memory and disk are upper bounds for the exchange; gradients, the optimizer's
state, activations and data cannot be forecast.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from flstream.aggregation.accountant import Accounting, epsilon
from flstream.aggregation.elements import FLOATS
from flstream.aggregation.methods import folded_updates
from flstream.aggregation.rules import AggregationRule, rule_for
from flstream.aggregation.steps import plan_steps
from flstream.client.personal_part import part_of
from flstream.engines.imports import library_imports
from flstream.filters.chain import remaining
from flstream.job import Job
from flstream.job.bodies import stage_bodies
from flstream.model.joined import MAIN, joint_layout, zeros_beside
from flstream.model.layout import Layout
from flstream.server.model_offers import is_worth_mapping
from flstream.server.stream_settings import stream_settings
from flstream.server.task_plan import TaskPlan, plan_disk, plan_task
from flstream.streaming.receiver import StreamSettings

# Memory of processes beside models, measured as PSS: shared libraries such as torch, and the
# private memory of each process.
_SHARED_BYTES = 240 << 20
_PROCESS_BYTES = 8 << 20
# An agent and its fork server.
_AGENT_PROCESSES = 2
# Further shared memory where the training code imports more, such as torch's optimisers.
_LIBRARIES_BYTES = 100 << 20
# The launcher, the fork server, the server, and the builder of the initial model.
_OTHER_PROCESSES = 4
# Memory of streaming in a process over its idle, whatever the size of the model: mostly pages of
# libraries that are used for the first time.
_STREAMING_BYTES = 24 << 20
# Memory for each pair of updates where they are compared: inner products, distances, and copies.
_PAIR_BYTES = 32
# Memory of a client for filters of numbers: what they sort, a histogram and blocks.
_FILTERS_BYTES = 8 << 20
# Memory of the server for each worker: threads, channels and messages.
_LINE_BYTES = 256 << 10

Mode = Literal["pull", "native", "map"]


class Traffic(NamedTuple):
    """Traffic in one direction.

    Attributes:
        bytes: number of bytes of tensors.
        requests: number of fetch requests.
        chunks: number of frames.
    """

    bytes: int = 0
    requests: int = 0
    chunks: int = 0

    def times(self, count: int) -> Traffic:
        """Multiply all counts."""
        return Traffic(self.bytes * count, self.requests * count, self.chunks * count)

    def plus(self, other: Traffic) -> Traffic:
        """Add the counts of other traffic."""
        return Traffic(*map(sum, zip(self, other, strict=True)))


@dataclass(frozen=True)
class Forecast:
    """Forecast of a job's traffic, memory and disk.

    Attributes:
        model_bytes: size of the model's body in bytes.
        tensors: number of tensors of the model.
        mode: transfer mode; native also where a chunk size of 0 turns streaming off. In map mode,
            the memory of a client is that of one whose training writes to the whole model.
        chunk_size: maximum frame size to the sites in bytes; 0 in native mode.
        sites: number of sites that train in a round.
        workers: number of worker processes.
        rounds: number of rounds.
        evaluations: number of rounds that are evaluated.
        down: traffic of a round's models to the sites that train.
        up: traffic of a round's updates to the server.
        evaluation: traffic of the models to the sites in a round that is evaluated.
        scored: number of models that all sites score after the rounds.
        submitted: traffic of the models that sites submit to the server.
        server_bytes: peak memory of the server over its idle, in bytes.
        client_bytes: peak memory of a client over its idle in bytes, for the exchange alone.
        worker_bytes: peak memory of a worker beside what the processes of its machine share.
        shared_bytes: memory that the processes of a machine share, such as that of libraries.
        processes: number of processes of the run, including the launcher.
        total_bytes: peak memory of all processes together in bytes, idle included; shared memory
            is counted once.
        round_disk_bytes: bytes that a round writes before any file can be removed.
        disk_bytes: peak size of all files together in bytes.
        epsilon: what all rounds of a private job spend; None if the job is not private.
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
    scored: int
    submitted: Traffic
    server_bytes: int
    client_bytes: int
    worker_bytes: int
    shared_bytes: int
    processes: int
    total_bytes: int
    round_disk_bytes: int
    disk_bytes: int
    epsilon: float | None = None

    @property
    def bytes_here(self) -> int:
        """Peak memory of the launcher's machine where all workers are on others."""
        return self.total_bytes - self.workers * self.worker_bytes

    def workers_in(self, memory: int) -> int:
        """Return how many workers a node of so many bytes of memory has room for."""
        agent = self.shared_bytes + _AGENT_PROCESSES * _PROCESS_BYTES
        return max((memory - agent) // self.worker_bytes, 0)

    @property
    def run_down(self) -> Traffic:
        """Traffic of all models to the sites: ``transfer.down`` of the summary."""
        evaluations = self.evaluations + self.scored
        return self.down.times(self.rounds).plus(self.evaluation.times(evaluations))

    @property
    def run_up(self) -> Traffic:
        """Traffic of all updates to the server: ``transfer.up`` of the summary."""
        return self.up.times(self.rounds).plus(self.submitted)


def plain_layout(model_bytes: int, tensors: int = 1) -> Layout:
    """Return the layout of a float32 model with tensors of equal size.

    Args:
        model_bytes: size of the model in bytes, rounded down to a multiple of 4.
        tensors: number of tensors, 1 or more.
    """
    each, more = divmod(model_bytes // 4, tensors)
    return Layout.of((f"tensor.{i}", "F32", (each + (i < more),)) for i in range(tensors))


def forecast(job: Job, layout: Layout) -> Forecast:
    """Forecast a job's traffic, memory and disk.

    Args:
        job: the job.
        layout: layout of the job's model.

    Raises:
        UsageError: a pattern of ``aggregation.include`` or ``exclude``, or of personal tensors,
            or a name of a filter,
            matches no tensor's name.
    """
    clients, bodies = job.clients, stage_bodies(job.stages[0], job.train)
    rule, cohort = replace(rule_for(job.aggregation), bodies=list(bodies)), clients.cohort_size
    if job.privacy.is_on:  # clipping takes a walk of its own
        rule = replace(rule, clip_norm=job.privacy.clipping.norm)
    settings = stream_settings(job, job.train.exchange_format)
    beside = {name: zeros_beside(layout, kind, FLOATS).layout for name, kind in bodies.items()}
    joint = joint_layout({MAIN: layout, **beside}) if bodies else layout
    plan = plan_task(job, joint.nbytes, cohort, is_ranked=rule.is_ranked)
    scoring = plan_task(job, layout.nbytes, clients.count, is_ranked=rule.is_ranked)
    remaining(layout, job.filters.down, "down")
    selected = rule.selected(joint)
    sent = selected - _personal(job, layout)
    update = _update_layout(remaining(joint, job.filters.up, "up"), sent)
    disk = plan_disk(job, joint, cohort)
    # Beside the initial model.
    more = disk.more_checkpoints(0, 1)
    passing = sum(part.size for part in disk.of_a_round) - disk.model - disk.optimizer_state
    every, scored = max(_evaluate_every(job), default=0), _scored(job)
    server, client = _memory(job, plan, settings, joint.nbytes, update.nbytes)
    server += _PAIR_BYTES * cohort**2 if rule.compares else 0
    processes = clients.workers + _OTHER_PROCESSES
    shared = _SHARED_BYTES
    if job.train.source is not None and library_imports(job.train.source):
        shared += _LIBRARIES_BYTES
    worker = _PROCESS_BYTES + client
    one, alone = (
        Traffic()
        if _is_mapped(job, settings, nbytes) and nbytes == layout.nbytes
        else _download(nbytes, settings)
        for nbytes in (joint.nbytes, layout.nbytes)
    )
    # The global model goes to a site once more where one of the site's own is drawn to it.
    drawn_to = alone if job.stages[0].args.has_own_models else Traffic()
    return Forecast(
        model_bytes=layout.nbytes,
        tensors=len(layout.tensors),
        mode=job.streaming.mode if settings.chunk_size else "native",
        chunk_size=settings.chunk_size,
        sites=cohort,
        workers=clients.workers,
        rounds=job.planned_rounds,
        evaluations=_evaluations(job),
        down=one.plus(drawn_to).times(-(-cohort // plan.sites)),
        up=_updates(job, plan, joint, update, settings, rule),
        evaluation=(
            alone.plus(drawn_to).times(-(-clients.count // scoring.sites))
            if every or scored
            else Traffic()
        ),
        scored=scored,
        submitted=alone.times(clients.count) if job.collects_models else Traffic(),
        server_bytes=server,
        client_bytes=client,
        worker_bytes=worker,
        shared_bytes=shared,
        processes=processes,
        total_bytes=(
            shared
            + (processes - clients.workers) * _PROCESS_BYTES
            + server
            + clients.workers * worker
        ),
        round_disk_bytes=sum(part.size for part in disk.of_a_round),
        disk_bytes=(
            disk.model
            + more * (disk.model + disk.optimizer_state)
            + passing
            + _dropped_but_mapped(job, settings, layout.nbytes)
        ),
        epsilon=_epsilon(job),
    )


def _is_mapped(job: Job, settings: StreamSettings, nbytes: int) -> bool:
    """Return whether workers map a model of so many bytes, if it is alone in its file."""
    from_sites = job.stages[0].args.folds_at_sites  # which offer the model to each other
    maps = job.streaming.maps and settings.chunk_size > 0 and not from_sites
    return maps and is_worth_mapping(nbytes)


def _dropped_but_mapped(job: Job, settings: StreamSettings, nbytes: int) -> int:
    """Return the bytes of checkpoints that the run drops, and workers may still have mapped.

    A worker has the model of its last task mapped until its next one.
    """
    if job.checkpoints.keep == "all" or not _is_mapped(job, settings, nbytes):
        return 0
    clients = job.clients
    all_train = clients.cohort_size == clients.workers == clients.count
    return nbytes * min(1 if all_train else clients.workers, job.planned_rounds)


def _epsilon(job: Job) -> float | None:
    """Return what a private job spends if each round folds, once, what was drawn for it."""
    if not job.privacy.is_on:
        return None
    accounting = Accounting.of(job)
    return epsilon(accounting, {accounting.population: job.planned_rounds})


def _scored(job: Job) -> int:
    """Return how many models all sites score after the rounds: the global ones, and of each site.

    Sites that a workflow leaves out are counted with the others, and so is a best model.
    """
    is_trained = any(stage.has_rounds for stage in job.stages)
    every = any(_evaluate_every(job)) or any(
        stage.args.evaluate == "received" for stage in job.stages
    )
    count = 0
    for stage in job.stages:
        if stage.collects_models:
            count += job.clients.count * is_trained + 1 + (is_trained and every)
        elif not stage.has_rounds:
            count += 1
    return count


def _evaluations(job: Job) -> int:
    """Return how many rounds are evaluated: regular ones of each stage, and the last of all."""
    count, done, every = 0, 0, 0
    for every in _evaluate_every(job):
        last = done + job.rounds
        if every:
            count += last // every - done // every
        done = last
    # Unless something else follows.
    is_last = job.stages[-1].has_rounds
    return count + (1 if is_last and every and done % every else 0)


def _evaluate_every(job: Job) -> Sequence[int]:
    """Return every how many rounds of each stage sites evaluate a model; 0 is never."""
    return [
        0 if stage.args.evaluate == "received" else stage.args.evaluate_every
        for stage in job.stages
        if stage.has_rounds
    ]


def _personal(job: Job, layout: Layout) -> frozenset[str]:
    """Return the names of the tensors that stay with their sites in the first workflow.

    Raises:
        UsageError: a pattern of any workflow is found in no tensor's name.
    """
    parts = [part_of(stage.args.personal_tensors, is_beside=False) for stage in job.stages]
    names = [frozenset[str]() if part is None else part.names(layout) for part in parts]
    return names[0]


def _update_layout(layout: Layout, selected: Collection[str]) -> Layout:
    """Return the layout of the tensors that are aggregated, and so sent, of those that may be."""
    return Layout.of((s.name, s.dtype, s.shape) for s in layout.tensors if s.name in selected)


def _download(nbytes: int, settings: StreamSettings) -> Traffic:
    """Return the traffic of a download with these settings."""
    if not nbytes:
        return Traffic()
    if not settings.chunk_size:
        return Traffic(nbytes, 1, 1)
    return Traffic(
        nbytes, -(-nbytes // settings.bytes_a_request), -(-nbytes // settings.frame_size)
    )


def _updates(
    job: Job,
    plan: TaskPlan,
    layout: Layout,
    update: Layout,
    settings: StreamSettings,
    rule: AggregationRule,
) -> Traffic:
    """Return the traffic of a round's updates, as :mod:`flstream.server.training` fetches them."""
    cohort = job.clients.cohort_size
    if not plan.own:
        whole, rest = divmod(cohort, plan.sites)
        batch = _download(plan.sites * update.nbytes, settings)
        return batch.times(whole).plus(_download(rest * update.nbytes, settings))
    is_partial = len(update.tensors) < len(layout.tensors)
    if settings.chunk_size:
        steps = plan_steps(
            layout,
            rule,
            updates=cohort,
            chunk_size=settings.frame_size,
            memory_budget=job.aggregation.memory_budget,
            partial=cohort if is_partial else 0,
        )
        settings = replace(settings, chunk_size=steps.frame)
    repeated = _fetched_again(job, rule, is_partial=is_partial)
    return _download(update.nbytes, settings).times(cohort + repeated)


def _fetched_again(job: Job, rule: AggregationRule, *, is_partial: bool) -> int:
    """Return how many updates are fetched once more: a first pass clips or compares them.

    Where the last models of sites are kept, a whole update is fetched for that, and folded from its
    file; a partial one is fetched once more.
    """
    cohort, repeated = job.clients.cohort_size, 0
    if rule.clip_norm is not None or rule.compares:
        repeated = folded_updates(rule, cohort)
    if not job.collects_models:
        return repeated
    return repeated + cohort if is_partial else 0


def _memory(
    job: Job, plan: TaskPlan, settings: StreamSettings, model: int, update: int
) -> tuple[int, int]:
    """Return the peak memory over idle of the server and of a client, in bytes."""
    workers = job.clients.workers
    server = _STREAMING_BYTES + workers * _LINE_BYTES + job.aggregation.memory_budget
    if plan.in_memory:
        server += job.clients.cohort_size * update
    client = _STREAMING_BYTES + model + (_FILTERS_BYTES if job.keep_models else 0)
    if plan.sites > 1:
        # The received model, and the updates: one by one, and then in one piece.
        client += model + 2 * plan.sites * update
    if not settings.chunk_size:
        # The server has the model serialised for each worker, and a file that is being serialised;
        # a client has the model and its serialised form.
        server += (workers + 1) * model
        client += model
    return server, client
