"""HLoRA: adapters of unequal ranks from one product (Liu et al. 2025, arXiv:2503.00813)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flstream.model.lora import lora_pairs
from flstream.workflows import GroupUpdate, Model, Run, TensorGroup, workflow

if TYPE_CHECKING:
    from flstream.aggregation.elements import Array


@dataclass(frozen=True)
class HLoRA:
    """The best factors of the mean of the products, by falling singular value."""

    def groups(self, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return each layer's factors."""
        return lora_pairs(names)

    def combine(self, group: TensorGroup, updates: Sequence[GroupUpdate]) -> Mapping[str, Array]:
        """Decompose the mean of the products, and keep as many singular values as there is rank."""
        from flstream.aggregation.low_rank import Factors, LoraGroup

        lora = LoraGroup.of(group, updates)
        parts = zip(lora.shares, lora.sent, strict=True)
        product = Factors.stacked([Factors(share * sent.left, sent.right) for share, sent in parts])
        best, lost = product.best(lora.base.rank)
        group.log("product_squared", product.squared_norm())
        group.log("lost_squared", lost)
        # Where the product needs less than the rank, the old rows of A stay beside columns of 0 in
        # B: with both 0, neither would have a gradient again.
        spare = ~best.left.any(0)
        best.right[spare] = lora.base.right[spare]
        return {lora.pair.a: best.right, lora.pair.b: best.left}


@workflow("hlora")
def hlora(run: Run) -> Model:
    """Average the products of LoRA adapters, of which each site takes as much as its rank holds.

    The model has the largest rank. A site of a smaller one takes the first rows and columns, with
    the largest singular values, and sends its own with zeros behind them: see ``flare.to_rank``.
    """
    model = run.initial_model()
    for number in run.rounds():
        updates = run.train(model, run.sample(number))
        model = run.fold(model, updates, tensors=HLoRA())
        run.evaluate(model)
    return model
