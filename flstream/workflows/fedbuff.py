"""FedBuff: buffered asynchronous aggregation (Nguyen et al. 2022, arXiv:2106.06639)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from flstream.job.fields import Count, Real, Whole
from flstream.workflows import FoldRule, Model, Run, Update, WorkflowArgs, workflow


class StalenessArgs(WorkflowArgs):
    """Arguments of workflows in which sites train without waiting for each other.

    An update's staleness is the number of models that were made while its site trained; its weights
    are those of Xie et al. 2019 (arXiv:1903.03934).
    """

    concurrency: Count | None = None
    """How many sites train at a time; null is `clients.per_round`."""

    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"
    """The weight of an update of staleness t, by the exponent (or slope) a and the bound b.

    constant is 1; polynomial is (1 + t)^-a; hinge is 1 up to b, and 1 / (1 + a (t - b)) above it.
    """

    staleness_exponent: Annotated[Real, Field(ge=0)] = 0.5
    """The exponent of polynomial, or the slope of hinge (a)."""

    staleness_bound: Annotated[Whole, Field(ge=0)] = 4
    """With hinge: the staleness up to which an update has its whole weight (b)."""

    max_staleness: Annotated[Whole, Field(ge=0)] | None = None
    """The staleness above which an update is left out; null is without a limit."""

    def weight(self, staleness: int) -> float:
        """Return the weight of an update by its staleness, above 0 and at most 1."""
        exponent, bound = self.staleness_exponent, self.staleness_bound
        if self.staleness == "polynomial":
            return float((1 + staleness) ** -exponent)
        if self.staleness == "hinge" and staleness > bound:
            return float(1 / (1 + exponent * (staleness - bound)))
        return 1.0


def next_update(run: Run, args: StalenessArgs, model: Model) -> tuple[Update, int]:
    """Keep sites training from the newest model until one answers; return its staleness, too."""
    draw, concurrency = run.random("sites"), args.concurrency or run.cohort_size
    while True:
        while run.idle and len(run.in_flight) < concurrency:
            run.start(draw.choice(run.idle), model)
        update = run.next()
        staleness = model.version - update.base.version
        if update.ok and (args.max_staleness is None or staleness <= args.max_staleness):
            return update, staleness


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
