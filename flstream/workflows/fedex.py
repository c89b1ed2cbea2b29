"""FedEx-LoRA: exact aggregation of adapters (Singhal et al. 2024, arXiv:2410.09432)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from flstream.workflows import GroupUpdate, Model, Run, TensorGroup, WorkflowArgs, workflow

if TYPE_CHECKING:
    from flstream.aggregation.elements import Array


class ResidualArgs(WorkflowArgs):
    """Arguments of workflows with a residual."""

    rank: Annotated[int, Field(ge=1)] | None = None
    """The rank of the residual of each layer; null is that of the adapter, times sites of a round.

    That holds one round exactly. What later rounds add beyond it is cut off by a singular value
    decomposition, and `lost_squared` in the journal says how much.
    """

    into: Literal["factors", "base"] = "factors"
    """Where the residual of a round goes: to factors beside the adapter, or to the base's weights.

    `base` writes a new file of the base's size in each round, and loses nothing but by the rounding
    of the base's dtype. The adapter has to be one of PEFT, around `model.base`.
    """


class LayersWithResidual:
    """Groups of a layer's factors and those of its residual."""

    def groups(self, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return each layer's factors, and those of its residual."""
        from flstream.aggregation.low_rank import pairs_with_residual

        return pairs_with_residual(names)


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
        if args.into == "base":
            model = run.merge(model)
        run.evaluate(model)
    return model
