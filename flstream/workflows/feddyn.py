"""Federated learning with dynamic regularisation (FedDyn: Acar et al. 2021, arXiv:2111.04263)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from flstream.job.fields import Real
from flstream.job.stage import ServerStep
from flstream.workflows import Model, Run, WorkflowArgs, workflow


class FedDynArgs(WorkflowArgs):
    """Arguments of feddyn."""

    server_step: ClassVar[ServerStep | None] = "feddyn"

    feddyn_alpha: Annotated[Real, Field(gt=0)] = 0.1
    """How strongly sites are regularised (alpha of the paper).

    Training code adds the term of a `DynamicRegulariser` to its loss, which takes it from here.
    """


@workflow("feddyn", FedDynArgs)
def feddyn(run: Run, args: FedDynArgs) -> Model:
    """Average models whose sites correct for the drift of their own losses (algorithm 1).

    A fold is the server's step: h -= alpha / m * sum(theta_k - theta), where m counts all sites,
    and the next model is mean(theta_k) - h / alpha, in which every site counts alike.
    """
    model = run.initial_model()
    for number in run.rounds():
        updates = run.train(model, run.sample(number), meta={"feddyn_alpha": args.feddyn_alpha})
        model = run.fold(model, updates)
        run.evaluate(model)
    return model
