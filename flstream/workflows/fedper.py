"""Federated learning with personal layers (FedPer: Arivazhagan et al. 2019, arXiv:1912.00818)."""

from __future__ import annotations

from collections.abc import Sequence

from flstream.job.fields import SomePatterns
from flstream.workflows import Model, Run, WorkflowArgs, workflow


class FedPerArgs(WorkflowArgs):
    """Arguments of fedper."""

    personal: SomePatterns
    """Regular expressions: a tensor in whose name one is found stays with its site, as its own.

    Such as `["^head"]`. A site trains and scores the model with its own last values of it. In the
    global model it keeps its initial value, with which a site begins.
    """

    @property
    def personal_tensors(self) -> Sequence[str]:
        """Patterns of the names of tensors that stay with their sites, for the forecast."""
        return self.personal


@workflow("fedper", FedPerArgs)
def fedper(run: Run, args: FedPerArgs) -> Model:
    """Average the base layers; each site keeps its own personal layers.

    A model is scored at each site with that site's personal layers.
    """
    model = run.initial_model()
    for number in run.rounds():
        updates = run.train(model, run.sample(number), personal=args.personal)
        model = run.fold(model, updates)
        run.evaluate(model, personal=args.personal)
    return model
