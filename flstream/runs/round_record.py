"""A round of a run as its events tell of it: seconds, metrics, transfers and privacy."""

from __future__ import annotations

import msgspec

from flstream.telemetry.events import Evaluated, Metrics, PrivacySpent, RoundFinished, Transfer

PHASES = ("download", "train", "upload and fold", "checkpoint", "evaluate")
"""Phases of a round, in order."""


class RoundRecord(msgspec.Struct):
    """A round.

    Attributes:
        number: Number of the round, from 1; 0 for evaluations of the initial model.
        phases: Seconds of download, training, upload and fold, and checkpoint.
        evaluation: Seconds of all its evaluations.
        trained: Metrics that the sites reported with their updates.
        scores: Metrics of its last evaluation; None if it had none.
        down: Transfers of models to the sites, evaluations included.
        up: Transfers of the updates.
        privacy: Privacy spent up to its end; None where the job is not private.
        aggregator: Site in whose process the updates were folded; empty for the server's.
    """

    number: int
    phases: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    evaluation: float = 0.0
    trained: Metrics = {}
    scores: Metrics | None = None
    down: Transfer = Transfer()
    up: Transfer = Transfer()
    privacy: PrivacySpent | None = None
    aggregator: str = ""

    @property
    def seconds(self) -> float:
        """Seconds of all phases together."""
        return sum(self.phases) + self.evaluation

    def finish(self, event: RoundFinished) -> None:
        """Add the end of the round."""
        self.phases, self.trained = event.phases, event.metrics
        self.privacy, self.aggregator = event.privacy, event.aggregator
        self.down += event.down
        self.up += event.up

    def evaluate(self, event: Evaluated) -> None:
        """Add an evaluation of the round's model."""
        self.evaluation += event.seconds
        self.scores = event.metrics
        self.down += event.down
