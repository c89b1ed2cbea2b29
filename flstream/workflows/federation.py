"""What a workflow asks of a federation, whatever its sites are and wherever they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from flstream.aggregation.fold import Fold
from flstream.client.messages import Trained
from flstream.telemetry.events import Transfer


class GlobalModel(NamedTuple):
    """A model between rounds: a file, never held in memory.

    Attributes:
        round: the round it is the result of; 0 is the initial model.
        path: its checkpoint.
    """

    round: int
    path: Path


class Training(NamedTuple):
    """What came of asking sites to train.

    Attributes:
        updates: where each site offers its update, in the order in which they are to be folded.
        down: the cost of the model's way to the sites.
        seconds: from when the last site had the model until the last one had trained it.
    """

    updates: Mapping[str, Trained]
    down: Transfer
    seconds: float


class Federation(Protocol):
    """Sites that can train and evaluate a model."""

    @property
    def sites(self) -> Sequence[str]:
        """The names of all sites, in their fixed order."""
        ...

    def initial_model(self) -> GlobalModel:
        """The model to begin with."""
        ...

    def train(self, model: GlobalModel, cohort: Sequence[str]) -> Training:
        """Begin the round after the model's: have a cohort train it.

        The updates stay with the sites until they are aggregated.
        """
        ...

    def aggregate(self, model: GlobalModel, training: Training, fold: Fold) -> GlobalModel:
        """Finish that round: fold the updates into its model, and make that durable."""
        ...

    def evaluate(self, model: GlobalModel, cohort: Sequence[str]) -> Mapping[str, float]:
        """Have sites score a model; the metrics are weighted by the sites' own weights."""
        ...
