"""Personal models drawn to the global one (Ditto: Li et al. 2021, arXiv:2012.04221)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flstream.job.fields import Real
from flstream.workflows import Model, Run, WorkflowArgs, workflow


class DittoArgs(WorkflowArgs):
    """Arguments of ditto."""

    ditto_lambda: Annotated[Real, Field(ge=0)] = 0.1
    """How strongly a site's own model is drawn to the global one (lambda of the paper).

    Training code adds `proximal_term(net)` to its loss; a patched trainer does so by itself. 0 is
    local training beside the federation.
    """


@workflow("ditto", DittoArgs)
def ditto(run: Run, args: DittoArgs) -> Model:
    """Train a model of its own at each site, near the global one; the latter is that of fedavg.

    The metrics of the sites' own models are named `personal_accuracy` and so on.
    """
    model = run.initial_model()
    for number in run.rounds():
        sites = run.sample(number)
        run.train_beside(model, sites, meta={"fedprox_mu": args.ditto_lambda})
        model = run.fold(model, run.train(model, sites))
        run.evaluate(model, beside=True)
    return model
