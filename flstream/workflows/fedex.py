"""FedEx-LoRA: exact aggregation of adapters (Singhal et al. 2024, arXiv:2410.09432)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from flstream.workflows import GroupUpdate, Model, Run, TensorGroup, workflow
from flstream.workflows.residual import LayersWithResidual, ResidualArgs

if TYPE_CHECKING:
    from flstream.aggregation.elements import Array


@dataclass(frozen=True)
class FedEx(LayersWithResidual):
    """Means of the factors, and what these leave of the mean of the products.

    That is ``mean(B_i A_i) - mean(B) mean(A) = mean((B_i - mean(B)) (A_i - mean(A)))``, a sum of
    small products.
    """

    def combine(self, group: TensorGroup, updates: Sequence[GroupUpdate]) -> Mapping[str, Array]:
        """Average the factors, and add the rest to the residual."""
        from flstream.aggregation.low_rank import Factors, LoraGroup

        lora = LoraGroup.of(group, updates)
        mean = Factors.mean(lora.sent, lora.shares)
        rest = [
            Factors(share * (sent.left - mean.left), sent.right - mean.right)
            for share, sent in zip(lora.shares, lora.sent, strict=True)
        ]
        return lora.changed(group, mean, rest)


@workflow("fedex", ResidualArgs)
def fedex(run: Run, args: ResidualArgs) -> Model:
    """Average LoRA adapters, and keep what the mean of their factors leaves in a residual.

    The base that sites get from ``flare.base_model()`` adds the residual.
    """
    from flstream.aggregation.low_rank import residual_shapes

    sites = len(run.sample(1))
    model = run.initial_model(residual=partial(residual_shapes, sites=sites, rank=args.rank))
    for number in run.rounds():
        updates = run.train(model, run.sample(number))
        model = run.fold(model, updates, tensors=FedEx())
        run.evaluate(model)
    return model
