"""Evaluation alone: every site scores one model, and nothing is trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from flstream.job.fields import Seconds
from flstream.job.problems import Problem
from flstream.workflows import Model, Run, WorkflowArgs, workflow
from flstream.workflows.cross_site import FINAL, RESULTS
from flstream.workflows.site_list import SiteList, unknown_sites

if TYPE_CHECKING:
    from flstream.job import ClientsSection


class EvaluateArgs(WorkflowArgs):
    """Arguments of evaluate."""

    has_rounds: ClassVar[bool] = False

    participating_sites: SiteList | None = None
    """The sites that score it; null is all."""

    eval_task_timeout: Seconds = 1200.0
    """How long a site may take (duration)."""

    def check_clients(self, clients: ClientsSection) -> Iterator[Problem]:
        """Yield the names of sites that the job lacks."""
        yield from unknown_sites("participating_sites", self.participating_sites, clients)


@workflow("evaluate", EvaluateArgs)
def evaluate(run: Run, args: EvaluateArgs) -> Model:
    """Score a model at every site; the mean is the run's score."""
    model = run.initial_model()
    sites = args.participating_sites or run.all_sites
    scores = run.score(model, sites, timeout=args.eval_task_timeout, owner=FINAL, counts=True)
    run.write_json(RESULTS, {site: {FINAL: dict(scores[site])} for site in scores})
    return model
