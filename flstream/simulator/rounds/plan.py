"""How a round is spread over workers: who runs which site, and where the updates go."""

from __future__ import annotations

from typing import NamedTuple

from flstream.aggregation.optimizers import optimizer_for
from flstream.aggregation.rules import rule_for
from flstream.job import Job
from flstream.model.layout import Layout
from flstream.simulator.rounds.disk import DiskPlan

# Of models up to here, a worker trains several sites in one task, and their updates wait in memory.
_TINY_BYTES = 1 << 20
_TASK_BYTES = 8 << 20
_MEMORY_BYTES = 16 << 20
_MOST_SITES = 64


class RoundPlan(NamedTuple):
    """How one task is spread.

    Attributes:
        own: whether every site has a worker of its own, in which its update stays.
        sites: how many sites a worker is given at a time.
        in_memory: whether updates that were fetched wait in memory, rather than in files.
        group: how many updates wait until they are added to the sum; 0 if there is no sum.
    """

    own: bool
    sites: int
    in_memory: bool
    group: int


def plan_round(job: Job, model_bytes: int, cohort: int, *, is_ranked: bool) -> RoundPlan:
    """Plan a task.

    Args:
        job: for its workers.
        model_bytes: of the model.
        cohort: how many sites.
        is_ranked: whether the fold needs all updates at once.
    """
    workers = job.clients.workers
    if workers == job.clients.count:
        return RoundPlan(own=True, sites=1, in_memory=False, group=0)
    size = max(model_bytes, 1)
    if size <= _TINY_BYTES and cohort * size <= _MEMORY_BYTES:
        sites = min(-(-cohort // workers), _TASK_BYTES // size, _MOST_SITES)
        return RoundPlan(own=False, sites=max(sites, 1), in_memory=True, group=0)
    group = max(4, 2 * workers)
    return RoundPlan(False, 1, False, 0 if is_ranked or cohort <= group else group)


def plan_disk(job: Job, layout: Layout, cohort: int) -> DiskPlan:
    """Plan what a run puts on disk.

    Args:
        job: the job.
        layout: of its model.
        cohort: how many sites train in a round.
    """
    rule, optimizer = rule_for(job.aggregation), optimizer_for(job.server_optimizer)
    plan = plan_round(job, layout.nbytes, cohort, is_ranked=rule.is_ranked)
    waiting = 0 if plan.own or plan.in_memory else cohort
    sums = 0
    if plan.group:
        waiting = 2 * plan.group
        sums = 8 * sum(spec.elements for spec in layout.tensors)
    state = optimizer.state_layout(layout, rule).nbytes if optimizer is not None else 0
    return DiskPlan(job.rounds, job.checkpoints.keep, layout.nbytes, waiting, sums, state)
