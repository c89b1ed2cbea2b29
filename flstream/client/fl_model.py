"""The record a training script receives and sends, after NVFlare's ``FLModel``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from flstream.streaming.decomposers import default_registry

if TYPE_CHECKING:
    from flstream.model.memory import Params


@default_registry.register_enum
class ParamsType(StrEnum):
    """What the tensors of an :class:`FLModel` are."""

    FULL = "FULL"
    """The weights themselves."""
    DIFF = "DIFF"
    """The new weights minus those received."""


@default_registry.register_dataclass
@dataclass
class FLModel:
    """A model on its way to or from a site.

    Attributes:
        params: tensors or arrays by name; None where only metrics are sent.
        params_type: whether they are the weights or a difference; a string will do.
        metrics: numbers by name, such as ``{"accuracy": 0.97}``.
        current_round: number of the round, from 0, as in NVFlare.
        total_rounds: rounds in the job.
        meta: anything else. An update's weight in the mean is ``meta["num_examples"]`` (or, as in
            NVFlare, ``meta["NUM_STEPS_CURRENT_ROUND"]``); 1 where neither is given. An update with
            ``meta["partial"]`` true may lack tensors, which then keep their values.
    """

    params: Params | None = None
    params_type: ParamsType = ParamsType.FULL
    metrics: dict[str, float] | None = None
    current_round: int | None = None
    total_rounds: int | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.params_type = ParamsType(self.params_type)
