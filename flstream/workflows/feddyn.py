"""Dynamic regularisation (FedDyn: Acar et al. 2021, arXiv:2111.04263)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from flstream.job.fields import Real
from flstream.workflows import Model, Run, ServerStep, WorkflowArgs, workflow

if TYPE_CHECKING:
    from flstream.aggregation.elements import Array


class FedDynArgs(WorkflowArgs):
    """Arguments of feddyn."""

    feddyn_alpha: Annotated[Real, Field(gt=0)] = 0.1
    """How strongly sites are regularised (alpha of the paper).

    Training code adds the term of a `DynamicRegulariser` to its loss, which takes it from here.
    """


@dataclass(frozen=True)
class FedDynStep(ServerStep):
    """The server's part of algorithm 1: ``h -= alpha / m * sum(theta_k - theta)``.

    The next model is ``mean(theta_k) - h / alpha``. What is kept is ``-h / alpha``: alpha cancels
    out.

    Attributes:
        sites: Number of all sites, m of the paper.
    """

    sites: int
    moments = ("momentum",)
    counts_alike = True

    def step(self, difference: Array, moments: dict[str, Array], updates: int) -> Array:
        """Make a step; see :class:`ServerStep`."""
        moments["momentum"] += updates / self.sites * difference
        difference += moments["momentum"]
        return difference


@workflow("feddyn", FedDynArgs)
def feddyn(run: Run, args: FedDynArgs) -> Model:
    """Average models of sites that correct for their losses' drift (algorithm 1)."""
    model, step = run.initial_model(), FedDynStep(len(run.all_sites))
    for number in run.rounds():
        updates = run.train(model, run.sample(number), meta={"feddyn_alpha": args.feddyn_alpha})
        model = run.fold(model, updates, step=step)
        run.evaluate(model)
    return model
