"""Names of the factors of low-rank adapters (LoRA: Hu et al. 2021, arXiv:2106.09685)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from flstream.errors import LayoutError

_FACTOR = re.compile(r"(?P<layer>.+)\.lora_(?P<factor>[AB])(?:\.(?P<adapter>[^.]+))?\.weight")
_EMBEDDING = re.compile(r"\.lora_embedding_[AB]\b")
# Before a layer's own name, in the state dict of a PeftModel.
_WRAPPED = "base_model.model."


class LoraPair(NamedTuple):
    """Names of the factors of a layer's change, which is ``B @ A``.

    Attributes:
        a: Name of A, of shape (rank, inputs).
        b: Name of B, of shape (outputs, rank).
    """

    a: str
    b: str


def lora_pairs(names: Iterable[str]) -> dict[str, LoraPair]:
    """Return the pairs of factors among a model's tensors, by name of the layer.

    Args:
        names: Names such as ``base_model.model.fc.lora_A.weight``, or with the name of the adapter,
            ``base_model.model.fc.lora_A.default.weight``. Other tensors are passed over.

    Raises:
        LayoutError: There is no pair, a factor lacks its other one, a layer has several adapters,
            or an embedding is adapted, whose factors are laid out otherwise.
    """
    factors: dict[str, dict[str, str]] = {}
    for name in names:
        if _EMBEDDING.search(name):
            raise LayoutError(
                f"tensor {name!r} adapts an embedding, and pairs of linear layers alone are "
                "combined; take the embedding out of target_modules"
            )
        if "lora_magnitude_vector" in name:
            raise LayoutError(
                f"tensor {name!r} is of DoRA, whose product of factors is scaled by magnitudes; "
                "build the adapter with use_dora=False"
            )
        match = _FACTOR.fullmatch(name)
        if match is None:
            continue
        layer = factors.setdefault(match["layer"], {})
        if match["factor"] in layer:
            raise LayoutError(
                f"tensors {layer[match['factor']]!r} and {name!r} adapt one layer; exchange one "
                "adapter"
            )
        layer[match["factor"]] = name
    for layer_name, pair in factors.items():
        if len(pair) == 1:
            (only,) = pair.values()
            raise LayoutError(
                f"tensor {only!r} lacks the other factor of {layer_name!r}; exchange both, and "
                "aggregate both (aggregation.include)"
            )
    if not factors:
        raise LayoutError(
            "the model has no LoRA pair, such as fc.lora_A.weight and fc.lora_B.weight; let "
            "model.factory build an adapter"
        )
    return {layer: LoraPair(pair["A"], pair["B"]) for layer, pair in factors.items()}


def check_matrices(shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse factors that are no matrices, by the shapes of factors by name.

    Raises:
        LayoutError: A factor has more or fewer dimensions than two; the message names it.
    """
    for name, shape in shapes.items():
        if len(shape) != 2:
            raise LayoutError(
                f"tensor {name!r} has {len(shape)} dimensions, as in an adapter of a convolution, "
                "and factors of linear layers alone are combined; take its layer out of "
                "target_modules"
            )


def residual_pair(layer: str) -> LoraPair:
    """Return the names of the factors of a layer's residual."""
    return LoraPair(f"{layer}.residual_A", f"{layer}.residual_B")


def layer_in_base(layer: str) -> str:
    """Return the name that a layer has in the base, without an adapter around it."""
    return layer.rpartition(_WRAPPED)[2]
