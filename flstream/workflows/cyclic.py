"""Cyclic weight transfer (Chang et al. 2018, doi:10.1093/jamia/ocy017)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flstream.job.problems import Problem
from flstream.server.run import SiteOrder
from flstream.workflows import Model, Run, WorkflowArgs, workflow
from flstream.workflows.site_list import SiteList, unknown_sites

if TYPE_CHECKING:
    from flstream.job import ClientsSection


class CyclicArgs(WorkflowArgs):
    """Arguments of cyclic."""

    order: SiteOrder | SiteList = "fixed"
    """Whose turn it is when: fixed, random, random_without_same_in_a_row, or a list of sites.

    fixed is site-1 and up. A random order is drawn anew each round; without the same in a row, the
    last site of a round is not the first of the next.
    """

    def check_clients(self, clients: ClientsSection) -> Iterator[Problem]:
        """Yield the names in a list that no site of the job has."""
        if isinstance(self.order, list):
            yield from unknown_sites("order", self.order, clients)


@workflow("cyclic", CyclicArgs)
def cyclic(run: Run, args: CyclicArgs) -> Model:
    """Train the model at one site after another, each on the last one's result.

    A site that fails is passed over.
    """
    model = run.initial_model()
    for number in run.rounds():
        for site in run.order(number, args.order):
            if updates := run.train(model, [site], min_updates=0):
                model = run.adopt(updates)
        run.evaluate(model)
    return model
