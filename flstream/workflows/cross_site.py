"""Cross-site evaluation: every site scores every model (CrossSiteModelEval)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from flstream.job.fields import Seconds
from flstream.job.problems import Problem
from flstream.workflows import Model, Run, SiteModel, WorkflowArgs, workflow
from flstream.workflows.site_list import SiteList, unknown_sites

if TYPE_CHECKING:
    from flstream.job import ClientsSection

RESULTS = "cross_site/cross_val_results.json"
FINAL = "SRV_FL_global_model.pt"
"""The owner of the model that training ended with; the names are those of NVFlare's readers."""
BEST = "SRV_best_FL_global_model.pt"
"""The owner of the best evaluated model."""


class CrossSiteArgs(WorkflowArgs):
    """Arguments of cross_site."""

    has_rounds: ClassVar[bool] = False

    participating_sites: SiteList | None = None
    """The sites that submit models and score them; null is all."""

    submit_model_timeout: Seconds = 600.0
    """How long a site may take to submit its model (duration)."""

    eval_task_timeout: Seconds = 1200.0
    """How long a site may take to score one model (duration)."""

    def check_clients(self, clients: ClientsSection) -> Iterator[Problem]:
        """Yield the names of participating sites that no site of the job has."""
        yield from unknown_sites("participating_sites", self.participating_sites, clients)


@workflow("cross_site", CrossSiteArgs)
def cross_site(run: Run, args: CrossSiteArgs) -> Model:
    """Score the final model, the best one, and every site's last model at every site.

    A site that fails or takes too long is left out of what it failed in; the others count.
    """
    model = run.initial_model()
    sites = args.participating_sites or run.all_sites
    submitted = run.collect("submit_model", sites, timeout=args.submit_model_timeout)
    owners: dict[str, Model | SiteModel] = {FINAL: model}
    if run.best_model is not None:
        owners[BEST] = run.best_model
    owners |= submitted
    results: dict[str, dict[str, dict[str, float]]] = {site: {} for site in sites}
    for owner, candidate in owners.items():
        scores = run.score(candidate, sites, timeout=args.eval_task_timeout, owner=owner)
        for site, metrics in scores.items():
            results[site][owner] = dict(metrics)
    run.write_json(RESULTS, results)
    return model
