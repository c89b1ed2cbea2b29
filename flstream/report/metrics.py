"""The metrics of a run, in the order in which they are shown, and what they are called."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from flstream.report.text import printable
from flstream.simulator.files.summary import Summary


class Metric(NamedTuple):
    """What tells metrics apart.

    Attributes:
        kind: "train" for what sites reported with their updates; empty for a score of the model.
        name: as the job's code has it.
    """

    kind: str
    name: str

    @property
    def title(self) -> str:
        """As it is shown: ``accuracy``, ``train loss``."""
        return " ".join(printable(part) for part in self if part)


def values_by_round(summary: Summary) -> dict[int, dict[Metric, float]]:
    """The metrics of each round; those that were not finite are left out."""
    return {row["round"]: _flat(row) for row in summary.metrics}


def metrics_of(summaries: Iterable[Summary]) -> list[Metric]:
    """Every metric of some runs: those that decide, other scores, what training reported."""
    summaries = list(summaries)
    names = dict.fromkeys(
        metric for summary in summaries for row in summary.metrics for metric in _flat(row)
    )
    keys = {Metric("", summary.best.metric) for summary in summaries if summary.best}
    return sorted(names, key=lambda metric: (metric not in keys, metric.kind))


def final_scores(summary: Summary) -> dict[str, float | None]:
    """The scores of the last model that was scored, the one that decides first."""
    key = summary.best.metric if summary.best else None
    for row in reversed(summary.metrics):
        names = [name for name in row if name not in ("round", "train")]
        if names:
            return {name: row[name] for name in sorted(names, key=lambda name: name != key)}
    return {}


def _flat(row: Mapping[str, Any]) -> dict[Metric, float]:
    flat: dict[Metric, float] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= {Metric(name, inner): number for inner, number in value.items()}
        elif name != "round":
            flat[Metric("", name)] = value
    return {
        metric: float(value)
        for metric, value in flat.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
