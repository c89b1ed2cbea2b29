"""Federated averaging (McMahan et al. 2017, arXiv:1602.05629)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flstream.job.fields import Real
from flstream.workflows import Model, Run, WorkflowArgs, workflow


class FedAvgArgs(WorkflowArgs):
    """Arguments of fedavg."""

    fedprox_mu: Annotated[Real, Field(ge=0)] = 0.0
    """How strongly sites are drawn to the global model while they train (mu of FedProx); 0 is not.

    Training code adds `proximal_term(net)` to its loss, which takes it from here; a patched trainer
    does so by itself.
    """


@workflow("fedavg", FedAvgArgs)
def fedavg(run: Run, args: FedAvgArgs) -> Model:
    """Average, round by round, the models that sampled sites train.

    Updates are weighted by their numbers of examples, unless ``aggregation.method`` says otherwise.
    """
    model = run.initial_model()
    meta = {"fedprox_mu": args.fedprox_mu} if args.fedprox_mu else None
    for number in run.rounds():
        updates = run.train(model, run.sample(number), meta=meta)
        model = run.fold(model, updates)
        run.evaluate(model)
    return model
