"""Federated averaging (McMahan et al. 2017, arXiv:1602.05629)."""

from __future__ import annotations

from typing import ClassVar

from flstream.workflows import Model, Run, WorkflowArgs, workflow


class FedAvgArgs(WorkflowArgs):
    """Arguments of fedavg."""

    only_folds: ClassVar[bool] = True


@workflow("fedavg", FedAvgArgs)
def fedavg(run: Run, args: FedAvgArgs) -> Model:
    """Average, round by round, what sampled sites make of the global model.

    Updates are weighted by their numbers of examples, unless ``aggregation.method`` says otherwise.
    """
    model = run.initial_model()
    for number in run.rounds():
        updates = run.train(model, run.sample(number))
        model = run.fold(model, updates)
        run.evaluate(model)
    return model
