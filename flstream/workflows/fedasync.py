"""FedAsync: each update mixed into the model as it comes (Xie et al. 2019, arXiv:1903.03934)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flstream.job.fields import Real
from flstream.workflows import FoldRule, Model, Run, workflow
from flstream.workflows.fedbuff import StalenessArgs, next_update


class FedAsyncArgs(StalenessArgs):
    """Arguments of fedasync. A round is one update."""

    alpha: Annotated[Real, Field(gt=0, le=1)] = 0.6
    """Share of an update of staleness 0 in the next model."""


@workflow("fedasync", FedAsyncArgs)
def fedasync(run: Run, args: FedAsyncArgs) -> Model:
    """Move the model towards each update as it comes: algorithm 1."""
    model = run.initial_model()
    for _ in run.rounds():
        update, staleness = next_update(run, args, model)
        share = args.alpha * args.weight(staleness)
        model = run.fold(model, [update], FoldRule(share, base="model"))
        run.evaluate(model)
    return model
