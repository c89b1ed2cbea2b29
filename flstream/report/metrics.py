"""Metrics of runs, with their titles and their order on pages."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from flstream.runs.summary import BESIDE_METRICS, Summary
from flstream.text import printable

UNSCORED = "no score, since no site has received it"
"""What there is to say of the last model where those who receive a model score it."""


class Metric(NamedTuple):
    """Identity of a metric."""

    kind: str  # "train" for one that sites sent with their updates; empty for a model's score
    name: str  # in the job's code

    @property
    def title(self) -> str:
        """Title of the metric in tables and charts: ``accuracy``, ``train loss``."""
        return " ".join(printable(part) for part in self if part)


def values_by_round(summary: Summary) -> dict[int, dict[Metric, float]]:
    """Return the finite metrics of each round of a run, by number of the round."""
    return {row["round"]: flat_metrics(row) for row in summary.metrics if "round" in row}


def last_values(summary: Summary) -> dict[Metric, float]:
    """Return the last finite value of each metric of a run."""
    rows = values_by_round(summary).values()
    return {metric: value for row in rows for metric, value in row.items()}


def metrics_of(summaries: Iterable[Summary]) -> list[Metric]:
    """Return all metrics of some runs: key, other evaluation and train metrics."""
    summaries = list(summaries)
    keys = {Metric("", summary.best.metric) for summary in summaries if summary.best}
    rows = (row for summary in summaries for row in summary.metrics)
    return order_metrics((metric for row in rows for metric in flat_metrics(row)), keys)


def order_metrics(metrics: Iterable[Metric], keys: Collection[Metric] = ()) -> list[Metric]:
    """Return metrics once each: key metrics, other evaluation metrics, train metrics."""
    return sorted(dict.fromkeys(metrics), key=lambda metric: (metric not in keys, metric.kind))


def last_scored(summary: Summary) -> tuple[int, Mapping[str, float | None]] | None:
    """Return the last scored round, and its metrics with the key metric first."""
    key = summary.best.metric if summary.best else None
    for row in reversed(summary.metrics):
        names = sorted(row.keys() - BESIDE_METRICS, key=list(row).index)
        if names:
            names.sort(key=lambda name: name != key)
            return row["round"], {name: row[name] for name in names}
    return None


def flat_metrics(row: Mapping[str, Any]) -> dict[Metric, float]:
    """Return the finite metrics of a row like those of ``summary.json``."""
    flat = {Metric("", name): value for name, value in row.items() if name not in BESIDE_METRICS}
    flat |= {Metric("train", name): value for name, value in row.get("train", {}).items()}
    return {
        metric: float(value)
        for metric, value in flat.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
