"""Axes of the charts of metrics: rounds, simulated time, and bytes moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from flstream.report.drawing import Unit, Values
from flstream.report.run_record import RunRecord

_MOST_PLACES = 200


class MetricAxis(NamedTuple):
    """Horizontal axis of charts of metrics."""

    key: str
    words: str
    unit: Unit
    title: str  # beside its labels; empty where these have their unit


ROUNDS = MetricAxis("rounds", "rounds", "count", "round")
TIME = MetricAxis("time", "simulated time", "seconds", "")
BYTES = MetricAxis("bytes", "bytes moved", "bytes", "")


def axes_of(runs: Sequence[RunRecord]) -> list[MetricAxis]:
    """Return the axes that the metrics of runs are drawn over; rounds alone without times."""
    has_times = any(simulated_seconds(run) is not None for run in runs)
    return [ROUNDS, TIME, BYTES] if has_times else [ROUNDS]


def places_on(axis: MetricAxis, run: RunRecord) -> Mapping[int, float] | None:
    """Return the place of each round's model on an axis, by number; None for the numbers."""
    if axis == TIME:
        ends = {row.round: row.simulated_seconds for row in run.summary.rounds}
        return {0: 0.0} | {n: end for n, end in ends.items() if isinstance(end, float)}
    if axis == BYTES:
        rounds = run.history.rounds
        moved = accumulate(record.down.bytes + record.up.bytes for record in rounds)
        return {0: 0.0} | dict(zip((record.number for record in rounds), moved, strict=True))
    return None


def simulated_seconds(run: RunRecord) -> float | None:
    """Return how long a run took by the virtual clock; None without one."""
    seconds = run.summary.simulated_seconds
    return seconds if isinstance(seconds, float) else None


def seconds_to_best(run: RunRecord) -> float | None:
    """Return the simulated seconds until a run had its best model; None without one."""
    if run.summary.best is None or simulated_seconds(run) is None:
        return None
    return (places_on(TIME, run) or {}).get(run.summary.best.round)


def on_common_places(lines: Sequence[tuple[Values, Values]]) -> list[tuple[Values, Values]]:
    """Return lines with values at the same places, in between by a straight line.

    These are the places at which all of them have values, or none.
    """
    begin = max(float(places[0]) for places, _ in lines)
    end = min(float(places[-1]) for places, _ in lines)
    every = np.unique(np.concatenate([np.asarray(places, float) for places, _ in lines]))
    common = every[(begin <= every) & (every <= end)]
    if len(common) > _MOST_PLACES:
        common = np.linspace(begin, end, _MOST_PLACES)
    return [(common, np.interp(common, *line)) for line in lines]
