"""Plan of a task: sites to workers, and where updates wait until they are folded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flstream.aggregation.rules import AggregationRule, rule_for
from flstream.codecs.chain import chain_of
from flstream.errors import UsageError
from flstream.job import Job
from flstream.model.layout import Layout
from flstream.server.disk import DiskPlan, counted
from flstream.server.program_view import ProgramOutline

# Of models up to here, a worker trains several sites in one task, and their updates come in the
# answer: the largest model, the largest sum of a task's updates, the largest sum of a cohort's.
# What a codec makes of an update may have three times its header, and a message 16 MiB at most.
_TINY_BYTES = 1 << 20
_TASK_BYTES = 4 << 20
_MEMORY_BYTES = 16 << 20
_MOST_SITES = 64
RECORD_BYTES = 64 << 10
"""Most bytes of a model whose started trainings leave their updates in the journal."""


class TaskPlan(NamedTuple):
    """Plan of one task.

    Attributes:
        has_own_workers: Whether each site has its own worker, in which its update stays until it is
            folded.
        batch_size: Number of sites that a worker is given at a time.
        is_inline: Whether updates are so small that they travel in the answers.
        in_files: Whether updates wait in files.
        sum_group: Number of updates that are added to the partial sum at a time; 0 for no sum.
        combines: Whether groups of whole tensors are combined, which takes updates in files.
        at: Sites of which one folds the updates; none for the server.
    """

    has_own_workers: bool
    batch_size: int
    is_inline: bool
    in_files: bool
    sum_group: int
    combines: bool = False
    at: Sequence[str] = ()

    def inline_bytes(self, layout: Layout) -> int:
        """Most bytes of an update of a model that travels in the answer; 0 where none does."""
        return max(layout.nbytes, 1) if self.is_inline else 0


def plan_task(
    job: Job,
    layout: Layout,
    cohort: int,
    *,
    needs_all_updates: bool = True,
    is_read: bool = False,
    at: Sequence[str] = (),
    is_partial: bool = False,
    combines: bool = False,
) -> TaskPlan:
    """Plan a task.

    Args:
        job: The job, for the number of its workers.
        layout: Layout of the model.
        cohort: Number of sites.
        needs_all_updates: Whether the fold needs all updates at once, and not only their sum.
        is_read: Whether the workflow reads the updates, which then wait in files, before a fold.
        at: Sites of which one folds the updates; none for the server. Where workers are shared,
            these write the updates to files: nothing comes to the server.
        is_partial: Whether sites are sent parts of models, which may differ from site to site.
        combines: Whether the fold combines groups of whole tensors, which it reads in any order.

    Raises:
        UsageError: Links are emulated, and sites that share workers are to exchange updates.
    """
    if not job.clients.share_workers:
        in_files = is_read or combines
        return TaskPlan(True, 1, False, in_files, 0, combines=combines, at=at)
    if at and job.paces_links:
        raise UsageError(
            "where sites fold, and links are emulated (network), each site needs a worker of its "
            f"own; set clients.parallel = {job.clients.count}"
        )
    if at:
        return TaskPlan(False, 1, is_inline=False, in_files=True, sum_group=0, at=at)
    size, workers = max(layout.nbytes, 1), job.clients.workers
    is_plain = not job.paces_links and not job.streaming.codecs.of_updates.is_framed
    if is_plain and size <= _TINY_BYTES and cohort * size <= _MEMORY_BYTES:
        sites = min(
            -(-cohort // workers), _TASK_BYTES // (size + len(layout.plain_header)), _MOST_SITES
        )
        sites = 1 if is_partial else max(sites, 1)
        return TaskPlan(
            False, sites, is_inline=True, in_files=is_read, sum_group=0, combines=combines
        )
    group = max(4, 2 * workers)
    if needs_all_updates or is_read or combines or cohort <= group:
        group = 0
    return TaskPlan(False, 1, is_inline=False, in_files=True, sum_group=group, combines=combines)


# Files with what a codec has left out that a site has at most: of its last states, and the next.
_RESIDUALS = 6


def plan_disk(
    job: Job,
    layout: Layout,
    cohort: int,
    programs: Sequence[ProgramOutline],
    plan: TaskPlan | None = None,
    base_bytes: int = 0,
    *,
    is_started: bool = False,
) -> DiskPlan:
    """Plan the disk space of a run.

    Args:
        job: The job.
        layout: Layout of its model.
        cohort: Number of sites that train in a round.
        programs: What its workflows do.
        plan: Plan of their task; None for that of a task whose updates are folded as they come.
        base_bytes: Size of the base that the sites share; 0 without one.
        is_started: Whether it is for trainings that are started beside others.
    """
    rule = rule_for(job.aggregation)
    if plan is None:
        plan = plan_task(
            job,
            layout,
            cohort,
            needs_all_updates=rule.needs_all_updates,
            is_read=job.chooses_answers,
            combines=any(program.combines for program in programs),
        )
    waiting = cohort if plan.in_files else 0
    sums = 0
    if plan.sum_group:
        waiting = 2 * plan.sum_group
        sums = 8 * sum(spec.elements for spec in layout.tensors)
    # Updates of trainings that were started: small ones lie in the journal.
    if layout.nbytes > RECORD_BYTES:
        waiting = max(waiting, *(program.waiting for program in programs), 0)
    in_flight = max((program.in_flight for program in programs), default=0)
    # Each site's, and the one that takes the place of an earlier one.
    of_sites = job.clients.count + 1 if any(program.collected for program in programs) else 0
    if is_started:  # what others need is there, or was checked as they were started
        waiting, in_flight = cohort, 0
    # Tiny models stay in the workers' memory.
    received = 0 if plan.is_inline else _kept_models(job)
    bases = 0 if job.checkpoints.keep == "all" else in_flight
    replicas, merges = _replicas(job, programs), any(program.merges for program in programs)
    model = layout.nbytes + _bytes_of_changes(job, layout)
    return DiskPlan(
        job.planned_rounds,
        job.checkpoints.keep,
        model,
        beside={
            "the server optimizer's state": _state_bytes(job, layout, rule, programs),
            "the next base": base_bytes if merges else 0,
        },
        passing={
            counted(waiting, "update") + " in waiting": waiting * model,
            "the sum of updates and its successor": 2 * sums,
            "tensors combined in groups": layout.nbytes if plan.combines else 0,
            "models as sites received them": received * model,
            counted(bases, "model") + " that sites train from": bases * model,
            counted(of_sites, "model") + " of sites": of_sites * model,
            counted(replicas, "model") + " in sites' states": replicas * model,
        },
    )


def _state_bytes(
    job: Job, layout: Layout, rule: AggregationRule, programs: Sequence[ProgramOutline]
) -> int:
    """Return the bytes of the largest state of a server's step."""
    moments: list[Sequence[str]] = [program.moments for program in programs if program.moments]
    if job.server_optimizer.type == "none" and not moments:
        return 0
    from flstream.aggregation.optimizers import optimizer_for, state_layout

    if (optimizer := optimizer_for(job.server_optimizer)) is not None:
        moments.append(optimizer.moments)
    return max((state_layout(step, layout, rule).nbytes for step in moments), default=0)


def _replicas(job: Job, programs: Sequence[ProgramOutline]) -> int:
    """Return the number of models in the states of sites that keep a replica of their own.

    A site has its state and the one that it works on. In each are the weights and two moments, and
    the model as it was received where changes of it travel.
    """
    if not any(program.has_replicas for program in programs):
        return 0
    return 2 * (3 + job.streaming.codecs.keep_models) * job.clients.count


def _bytes_of_changes(job: Job, layout: Layout) -> int:
    """Return the bytes of a model's changes in the form in which sites are sent them."""
    changes = chain_of(job.streaming.codecs.of_models).changes
    return 0 if changes is None else changes.encoded(layout).nbytes


def _kept_models(job: Job) -> int:
    """Return how many models sites keep in files at most, beside their own states."""
    codecs, workers, sites = job.streaming.codecs, job.clients.workers, job.clients.count
    # The one before, until the next one has come with what differs from it.
    received = workers * (2 if codecs.of_models.needs_base else 1) if job.keep_models else 0
    return received + (_RESIDUALS * sites if codecs.of_updates.leaves_out else 0)
