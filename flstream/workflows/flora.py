"""FLoRA: stacked adapters of any ranks (Wang et al. 2024, arXiv:2409.05976)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from flstream.workflows import GroupUpdate, Model, Run, TensorGroup, workflow
from flstream.workflows.fedex import LayersWithResidual, ResidualArgs

if TYPE_CHECKING:
    from flstream.aggregation.elements import Array


@dataclass(frozen=True)
class FLoRA(LayersWithResidual):
    """The stacked adapters, and a new adapter for the next round."""

    def combine(self, group: TensorGroup, updates: Sequence[GroupUpdate]) -> Mapping[str, Array]:
        """Stack the adapters, and begin with the first A and a B of zeros again."""
        from flstream.aggregation.low_rank import Factors, LoraGroup

        lora = LoraGroup.of(group, updates)
        parts = zip(lora.shares, lora.sent, strict=True)
        stacked = [Factors(share * sent.left, sent.right) for share, sent in parts]
        return lora.changed(group, lora.base.begun_anew(), stacked)


@workflow("flora", ResidualArgs)
def flora(run: Run, args: ResidualArgs) -> Model:
    """Stack the LoRA adapters of each round, of equal or unequal ranks, beside the base.

    The base that sites get from ``flare.base_model()`` adds what was stacked; each round trains a
    new adapter around it.
    """
    from flstream.aggregation.low_rank import residual_shapes

    sites = len(run.sample(1))
    model = run.initial_model(residual=partial(residual_shapes, sites=sites, rank=args.rank))
    for number in run.rounds():
        updates = run.train(model, run.sample(number))
        model = run.fold(model, updates, tensors=FLoRA())
        if args.into == "base":
            model = run.merge(model)
        run.evaluate(model)
    return model
