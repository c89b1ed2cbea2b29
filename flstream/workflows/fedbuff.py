"""FedBuff: buffered asynchronous aggregation (Nguyen et al. 2022, arXiv:2106.06639)."""

from __future__ import annotations

from flstream.job.fields import Count
from flstream.workflows import FoldRule, Model, Run, Update, workflow
from flstream.workflows.staleness import StalenessArgs, next_update


class FedBuffArgs(StalenessArgs):
    """Arguments of fedbuff. A round is a full buffer."""

    buffer_size: Count = 10
    """How many updates the next model is made of (K)."""


@workflow("fedbuff", FedBuffArgs)
def fedbuff(run: Run, args: FedBuffArgs) -> Model:
    """Make a model of every K updates, as they come; sites train on without waiting.

    Algorithm 1: each update counts by its difference from the model that its site started from. The
    server's learning rate and momentum are those of ``server_optimizer``.
    """
    model = run.initial_model()
    for _ in run.rounds():
        buffer: list[Update] = []
        weights: list[float] = []
        while len(buffer) < args.buffer_size:
            update, staleness = next_update(run, args, model)
            buffer.append(update)
            weights.append(args.weight(staleness))
        model = run.fold(model, buffer, FoldRule(weights, scale=1 / len(buffer), base="own"))
        run.evaluate(model)
    return model
