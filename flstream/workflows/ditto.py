"""Personal models near the global one (Ditto: Li et al. 2021, arXiv:2012.04221)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flstream.job.fields import Real
from flstream.workflows import Model, Run, WorkflowArgs, workflow


class DittoArgs(WorkflowArgs):
    """Arguments of ditto."""

    ditto_lambda: Annotated[Real, Field(ge=0)] = 0.1
    """How strongly a site's own model is drawn to the global one (lambda of the paper).

    Training code trains it in a block `with flare.own_model(net)`, with `flare.proximal_term(net)`
    in its loss. 0 is local training beside the federation.
    """


@workflow("ditto", DittoArgs)
def ditto(run: Run, args: DittoArgs) -> Model:
    """Train a site's own model near the global model of fedavg, at every site."""
    model, meta = run.initial_model(), {"ditto_lambda": args.ditto_lambda}
    for number in run.rounds():
        updates = run.train(model, run.sample(number), meta=meta)
        model = run.fold(model, updates)
        run.evaluate(model, meta=meta)
    return model
