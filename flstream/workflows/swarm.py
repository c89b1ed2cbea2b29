"""Swarm learning (Warnat-Herresthal et al. 2021, doi:10.1038/s41586-021-03583-3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flstream.job.fields import Seconds
from flstream.job.problems import Problem
from flstream.workflows import Model, Run, WorkflowArgs, workflow
from flstream.workflows.site_list import SiteList, unknown_sites

if TYPE_CHECKING:
    from flstream.job import ClientsSection


class SwarmArgs(WorkflowArgs):
    """Arguments of swarm."""

    aggregators: SiteList | None = None
    """The sites of which one is drawn in each round to fold the updates; null is all of them.

    If it is lost, the next one of the draw folds. The seed decides the draws, and who folds decides
    no bits.
    """

    start_task_timeout: Seconds = 300.0
    """How long a site may take to acknowledge a task (seconds); then it counts as lost.

    What the task takes from there on is up to clients.round_timeout.
    """

    progress_timeout: Seconds = 7200.0
    """How long nothing may come of a task or a fold, from no site (seconds); then the run fails."""

    def check_clients(self, clients: ClientsSection) -> Iterator[Problem]:
        """Yield the names of aggregators that no site of the job has."""
        yield from unknown_sites("aggregators", self.aggregators, clients)


@workflow("swarm", SwarmArgs)
def swarm(run: Run, args: SwarmArgs) -> Model:
    """Average updates at a site that each round draws anew (swarm learning).

    Updates go straight to it, and it offers the next model to its peers: the server coordinates,
    and reads no tensor.
    """
    run.limit_waiting(start=args.start_task_timeout, progress=args.progress_timeout)
    model, draw = run.initial_model(), run.random("aggregators")
    for number in run.rounds():
        updates = run.train(model, run.sample(number))
        active = set(run.sites)
        aggregators = [site for site in args.aggregators or run.all_sites if site in active]
        model = run.fold(model, updates, at=draw.sample(aggregators, len(aggregators)))
        run.evaluate(model)
    return model
