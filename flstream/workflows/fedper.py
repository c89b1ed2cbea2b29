"""Personal layers (FedPer: Arivazhagan et al. 2019, arXiv:1912.00818)."""

from __future__ import annotations

from flstream.job.fields import SomePatterns
from flstream.workflows import Model, Run, WorkflowArgs, workflow


class FedPerArgs(WorkflowArgs):
    """Arguments of fedper."""

    personal: SomePatterns
    """Regular expressions: a tensor in whose name one is found stays with its site, as its own.

    Such as `["^head"]`. Training code calls `flare.personal(net)`; a patched trainer does so by
    itself. In the global model such a tensor keeps its initial value, with which a site begins.
    """


@workflow("fedper", FedPerArgs)
def fedper(run: Run, args: FedPerArgs) -> Model:
    """Average the base layers; each site keeps its own personal layers.

    A model is scored at each site with that site's personal layers.
    """
    model, meta = run.initial_model(), {"personal": args.personal}
    for number in run.rounds():
        updates = run.train(model, run.sample(number), meta=meta)
        model = run.fold(model, updates)
        run.evaluate(model, meta=meta)
    return model
