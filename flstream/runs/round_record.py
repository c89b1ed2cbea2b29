"""A round of a run as its events tell of it: seconds, metrics, weights, transfers and failures."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import NamedTuple

from flstream.telemetry.events import (
    Evaluated,
    Metrics,
    PrivacySpent,
    RoundFinished,
    SiteFailed,
    Transfer,
)

PHASES = ("download", "train", "upload and fold", "checkpoint", "evaluate")
"""Phases of a round, in order."""


class RoundRecord(NamedTuple):
    """A round.

    Attributes:
        number: Number of the round, from 1.
        digest: Digest of the model that it ended with.
        optimizer_state: Digest of the server optimizer's state after it; empty without one.
        download: Seconds until the last site had the model.
        train: Seconds from then until the last update was ready.
        upload_and_fold: Seconds of the walk over the updates.
        checkpoint: Seconds until the new model was durable.
        evaluate: Seconds of all its evaluations.
        trained: Metrics that the sites reported with their updates.
        scores: Metrics of its last evaluation; None if it had none.
        down: Transfers of models to the sites, evaluations included.
        up: Transfers of the updates.
        failures: Sites that had no part in it, in order.
        privacy: Privacy spent up to its end; None where the job is not private.
        aggregator: Site in whose process the updates were folded; empty for the server's.
    """

    number: int
    digest: str = ""
    optimizer_state: str = ""
    download: float = 0.0
    train: float = 0.0
    upload_and_fold: float = 0.0
    checkpoint: float = 0.0
    evaluate: float = 0.0
    trained: Metrics = MappingProxyType({})
    scores: Metrics | None = None
    down: Transfer = Transfer()
    up: Transfer = Transfer()
    failures: Sequence[SiteFailed] = ()
    privacy: PrivacySpent | None = None
    aggregator: str = ""

    @property
    def phases(self) -> tuple[float, float, float, float, float]:
        """Seconds of download, training, upload and fold, checkpoint, and evaluation."""
        return (self.download, self.train, self.upload_and_fold, self.checkpoint, self.evaluate)

    @property
    def seconds(self) -> float:
        """Seconds of all phases together."""
        return sum(self.phases)

    def finished(self, event: RoundFinished) -> RoundRecord:
        """The round at its end."""
        return self._replace(
            digest=event.digest,
            optimizer_state=event.optimizer_state,
            download=event.download,
            train=event.train,
            upload_and_fold=event.upload_and_fold,
            checkpoint=event.checkpoint,
            trained=event.metrics,
            down=self.down + event.down,
            up=self.up + event.up,
            privacy=event.privacy,
            aggregator=event.aggregator,
        )

    def evaluated(self, event: Evaluated) -> RoundRecord:
        """The round with one more evaluation."""
        return self._replace(
            evaluate=self.evaluate + event.seconds,
            scores=event.metrics,
            down=self.down + event.down,
        )
