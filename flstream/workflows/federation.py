"""What a workflow asks of a federation, whatever its sites are and wherever they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from flstream.aggregation.mean import Fold
from flstream.client.messages import Trained


class GlobalModel(NamedTuple):
    """A model between rounds: a file, never held in memory.

    Attributes:
        round: the round it is the result of; 0 is the initial model.
        path: its checkpoint.
        digest: of its layout and bytes.
    """

    round: int
    path: Path
    digest: str


class Federation(Protocol):
    """Sites that can train and evaluate a model."""

    @property
    def sites(self) -> Sequence[str]:
        """The names of all sites, in their fixed order."""
        ...

    def initial_model(self) -> GlobalModel:
        """The model to begin with."""
        ...

    def train(
        self, model: GlobalModel, cohort: Sequence[str], round_number: int
    ) -> Mapping[str, Trained]:
        """Have sites train a model; their updates stay with them until they are aggregated."""
        ...

    def aggregate(
        self, model: GlobalModel, trained: Mapping[str, Trained], fold: Fold, round_number: int
    ) -> GlobalModel:
        """Fold updates into the next model and make it durable."""
        ...

    def evaluate(
        self, model: GlobalModel, cohort: Sequence[str], round_number: int
    ) -> Mapping[str, float]:
        """Have sites score a model; the metrics are weighted by the sites' own weights."""
        ...
