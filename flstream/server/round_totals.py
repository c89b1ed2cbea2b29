"""Costs and results of the current round, for the event that ends it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from flstream.runs.results import FoldResult, TaskCost
from flstream.telemetry.events import ModelRecord, PrivacySpent, RoundFinished, Transfer


class RoundTotals:
    """Adds up what a round's effects cost and brought."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._download = self._train = self._fold = self._checkpoint = 0.0
        self._down, self._up = Transfer(), Transfer()
        self._weights: dict[str, float] = {}
        self._updates = Counter[str]()
        self._aggregator = ""
        self._metrics: list[tuple[float, Mapping[str, float]]] = []
        self._privacy: PrivacySpent | None = None

    def add_task(self, cost: TaskCost) -> None:
        """Add what a training cost."""
        self._download += cost.download
        self._train += cost.work
        self._fold += cost.fetch
        self._down += msgspec.structs.replace(cost.down, seconds=cost.download)

    def add_model(self, result: FoldResult) -> None:
        """Add what a model cost that was made."""
        self._fold += result.fold
        self._checkpoint += result.checkpoint
        self._up += result.up
        self._aggregator = result.at or self._aggregator
        for site, weight in result.weights.items():
            self._weights[site] = self._weights.get(site, 0.0) + weight
        self._updates.update(site for _, sites in result.updates for site in sites)
        self._metrics.append((sum(result.weights.values()), result.metrics))
        if result.privacy is not None:
            self._privacy = result.privacy.spent

    def finished(self, newest: ModelRecord, simulated: float | None) -> RoundFinished:
        """The event that ends the round, with the virtual clock's time in seconds, if any."""
        return RoundFinished(
            round=self.number,
            digest=newest.digest,
            optimizer_state=newest.optimizer_state,
            download=self._download,
            train=self._train,
            upload_and_fold=self._fold,
            checkpoint=self._checkpoint,
            weights=self._weights,
            updates={site: n for site, n in self._updates.items() if n > 1},
            metrics=self._mean(),
            down=self._down,
            up=msgspec.structs.replace(self._up, seconds=self._fold),
            aggregator=self._aggregator,
            privacy=self._privacy,
            simulated_seconds=simulated,
        )

    def _mean(self) -> dict[str, float]:
        if len(self._metrics) == 1:
            return dict(self._metrics[0][1])
        means = {}
        for name in sorted({name for _, metrics in self._metrics for name in metrics}):
            having = [
                (weight, metrics[name]) for weight, metrics in self._metrics if name in metrics
            ]
            total = sum(weight for weight, _ in having)
            means[name] = sum(weight * value for weight, value in having) / total
        return means
