"""What a workflow asks of a federation, whatever its sites are and wherever they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from flstream.model.digests import ChunkDigests
from flstream.telemetry.events import Metrics

TrainingT = TypeVar("TrainingT")


class GlobalModel(NamedTuple):
    """A model between rounds: a file, never held in memory.

    Attributes:
        round: the round it is the result of; 0 is the initial model.
        path: its checkpoint.
        digest: of it.
        chunk_digests: of its chunks, as far as they were taken while it was written.
    """

    round: int
    path: Path
    digest: str
    chunk_digests: ChunkDigests | None = None


class Federation(Protocol[TrainingT]):
    """Sites that can train and evaluate a model."""

    @property
    def sites(self) -> Sequence[str]:
        """The names of all sites that are asked, in their fixed order."""
        ...

    @property
    def evaluations(self) -> Sequence[tuple[int, Metrics]]:
        """Of earlier rounds, if this is a run that goes on: the round, and its metrics."""
        ...

    def model(self) -> GlobalModel:
        """The model to begin with, or to go on from."""
        ...

    def train(self, model: GlobalModel, cohort: Sequence[str]) -> TrainingT:
        """Begin the round after the model's: have a cohort train it.

        What comes of it is for :meth:`aggregate`.
        """
        ...

    def aggregate(self, model: GlobalModel, training: TrainingT) -> GlobalModel:
        """Finish that round: fold the updates into its model, and make that durable."""
        ...

    def evaluate(self, model: GlobalModel, cohort: Sequence[str]) -> Mapping[str, float]:
        """Have sites score a model; the metrics are weighted by the sites' own weights."""
        ...

    def end_early(self, model: GlobalModel, reason: str) -> None:
        """Say why a model is the last, though the job has more rounds."""
        ...

    def warn(self, message: str) -> None:
        """Say something that is not wrong, but most likely not meant."""
        ...
