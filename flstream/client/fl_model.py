"""Model record that training code receives and sends, after NVFlare's ``FLModel``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from flstream.streaming.decomposers import default_registry

if TYPE_CHECKING:
    from flstream.model.memory import Params


@default_registry.register_enum
class ParamsType(StrEnum):
    """Kind of the tensors in an :class:`FLModel`: weights, or a difference of weights."""

    FULL = "FULL"
    """Weights."""
    DIFF = "DIFF"
    """New weights minus the received ones."""


@default_registry.register_dataclass
@dataclass
class FLModel:
    """Model that a site receives or sends.

    Attributes:
        params: Tensors or arrays by name; None if only metrics are sent.
        params_type: Whether ``params`` are weights or a difference; a string is converted.
        metrics: Numbers by name, such as ``{"accuracy": 0.97}``; None for none.
        current_round: Number of the round, from 0, as in NVFlare; None in an answer.
        total_rounds: Number of rounds in the job; None in an answer.
        meta: Plain values by name; a site's reach the workflow, and the workflow's reach the site.
            ``meta["num_examples"]`` (or, as in NVFlare, ``meta["NUM_STEPS_CURRENT_ROUND"]``) is
            the update's weight in the mean, 1 by default. With ``meta["partial"]`` true the update
            may lack tensors, which then keep their values.
        optimizer_params: State of an optimizer as plain values, without tensors; None for none.
    """

    params: Params | None = None
    params_type: ParamsType = ParamsType.FULL
    metrics: dict[str, float] | None = None
    current_round: int | None = None
    total_rounds: int | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    optimizer_params: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.params_type = ParamsType(self.params_type)
