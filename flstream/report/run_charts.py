"""Charts of one run or several: metrics, memory, seconds, logged values, scores across sites."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby, zip_longest

import numpy as np

from flstream.report.drawing import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PINK,
    SERIES,
    VERMILION,
    VIOLET,
    Chart,
    Curve,
    Values,
    band_of,
    bar_chart,
    curve_chart,
)
from flstream.report.metrics import Metric, metrics_of, values_by_round
from flstream.report.run_record import HELPERS, RunRecord
from flstream.report.text import counted, elide
from flstream.runs.round_record import PHASES
from flstream.telemetry.events import SERVER
from flstream.text import printable
from flstream.units import format_bytes

PHASE_COLORS = dict(zip(PHASES, (BLUE, GREEN, ORANGE, VERMILION, PINK), strict=True))
"""Colours of a round's phases, as CSS names them."""

_MOST_METRICS, _MOST_LOGGED, _MOST_LINES, _NAME = 8, 12, 16, 16
# Maximum delay of a memory sample on a busy machine; a process without one for longer is gone.
_LATE_SECONDS = 2.0


def series_color(index: int) -> str:
    """Return the colour of a compared run, by its index."""
    return SERIES[index % len(SERIES)]


def seed_groups(runs: Sequence[RunRecord]) -> list[list[int]]:
    """Group runs, by their indices, that differ in their seed alone."""
    groups: dict[object, list[int]] = {}
    for index, run in enumerate(runs):
        settings = tuple((k, s.value) for k, s in run.settings.items() if k != "seed")
        same = groups.get(settings, [])
        is_new = any(runs[other].summary.seed == run.summary.seed for other in same)
        # A run without settings is like no other, and nor is a repetition.
        groups.setdefault(index if is_new or not settings else settings, []).append(index)
    return list(groups.values())


def metric_charts(runs: Sequence[RunRecord], labels: Sequence[str]) -> list[Chart]:
    """Draw each metric: a line for each run, or mean and spread of runs that differ in their seed.

    Args:
        runs: one run, or several to compare.
        labels: label of each run.
    """
    metrics = metrics_of([run.summary for run in runs])[:_MOST_METRICS]
    rounds = [values_by_round(run.summary) for run in runs]
    return [_metric_chart(metric, runs, rounds, labels) for metric in metrics]


def _metric_chart(
    metric: Metric,
    runs: Sequence[RunRecord],
    rounds: Sequence[Mapping[int, Mapping[Metric, float]]],
    labels: Sequence[str],
) -> Chart:
    curves: list[Curve] = []
    for group in seed_groups(runs):
        lines = [_points(rounds[index], metric) for index in group]
        lines = [line for line in lines if len(line[0])]
        color = series_color(group[0])
        if len(lines) > 1:
            places, means, _, _, deviations = band_of(lines)
            label = f"{_short(labels[group[0]])}, " if len(runs) > len(group) else ""
            label += f"mean of {counted(len(lines), 'seed')}"
            high, low = means + deviations, means - deviations
            curves.append(Curve("\N{PLUS-MINUS SIGN} sd", places, high, color, lows=low))
            curves += [Curve("", *line, color, 0.6) for line in lines]
            curves.append(Curve(label, places, means, color))
        elif lines:
            best = runs[group[0]].summary.best
            is_key = best is not None and metric == ("", best.metric)
            mark = best.round if best is not None and is_key else None
            label = _short(labels[group[0]]) if len(runs) > 1 else ""
            # Lower lines are thicker, so that those of equal runs are all visible.
            width = 1.8 + 1.4 * min(len(runs) - 1 - group[0], 3)
            curves.append(Curve(label, *lines[0], color, width, best=mark))
    return curve_chart(metric.title, curves, "count", "metric", x_title="round")


def _points(rounds: Mapping[int, Mapping[Metric, float]], metric: Metric) -> tuple[Values, Values]:
    points = {number: row[metric] for number, row in rounds.items() if metric in row}
    return list(points), list(points.values())


def seconds_chart(run: RunRecord, top: float | None = None) -> Chart | None:
    """Draw the seconds of each round by phase; None if no round was completed."""
    rounds = run.summary.rounds
    if not rounds:
        return None
    columns = zip(*(summary.phases for summary in rounds), strict=True)
    parts = dict(zip(PHASES, columns, strict=True))
    numbers = [summary.round for summary in rounds]
    return bar_chart("seconds of each round", numbers, parts, PHASE_COLORS, top=top)


def over_idle(run: RunRecord) -> dict[str, np.ndarray]:
    """Return the memory over idle of each process at each step, in bytes; NaN where it was gone."""
    return {
        name: np.maximum(_bridged(run, name) - rss, 0)
        for name, rss in run.history.timeline.idle_rss.items()
        if rss and name in run.memory.rss and name not in HELPERS
    }


def memory_charts(run: RunRecord, top: float | None = None) -> list[Chart]:
    """Draw the memory over idle of the server and the workers, and all that is resident.

    Args:
        run: the run.
        top: upper end of the vertical axis for runs that are compared, which have the first chart
            only; None for the maximum.
    """
    model = run.summary.model.bytes
    charts = [_memory_chart(run, "memory over idle (RSS)", over_idle(run), model, top)]
    if top is None:
        resident = {process: _bridged(run, process) for process in run.memory.rss}
        charts.append(_memory_chart(run, "resident memory (RSS)", resident, 0, None))
    return [chart for chart in charts if chart is not None]


def _memory_chart(
    run: RunRecord, title: str, values: Mapping[str, np.ndarray], model: int, top: float | None
) -> Chart | None:
    values = {name: rss for name, rss in values.items() if np.isfinite(rss).any()}
    if not values:
        return None
    step = run.memory.step
    workers = {name: rss for name, rss in values.items() if name not in (SERVER, *HELPERS)}
    colors = dict(zip(HELPERS, (GREEN, VERMILION, PINK, ORANGE), strict=True))
    curves = [
        _memory_curve(name, values[name], step, colors[name], 1.0)
        for name in HELPERS
        if name in values
    ]
    curves += _worker_curves(workers, step, run)
    if SERVER in values:
        curves.append(_memory_curve(SERVER, values[SERVER], step, INK))
    if model:
        ends = [0.0, max(map(len, values.values())) * step]
        label = f"model {format_bytes(model)}"
        curves.append(Curve(label, ends, [model] * 2, INK, 1.2, is_dashed=True))
    return curve_chart(title, curves, "seconds", "bytes", marks=run.resumed_at, top=top)


def _memory_curve(
    label: str, values: np.ndarray, step: float, color: str, width: float = 1.8
) -> Curve:
    # Each value is drawn in the middle of its step.
    return Curve(label, (np.arange(len(values)) + 0.5) * step, values, color, width)


def _worker_curves(values: Mapping[str, np.ndarray], step: float, run: RunRecord) -> list[Curve]:
    """Return curves of the workers: a line each, or the range of many and the highest of them."""
    if len(values) <= 1:
        return [_memory_curve(_short(n), rss, step, VIOLET) for n, rss in values.items()]
    is_shared = any(name.startswith("worker-") for name in run.history.timeline.idle_rss)
    together = counted(len(values), "worker" if is_shared else "site")
    most = max(values, key=lambda name: float(np.nanmax(values[name])))
    if len(values) <= _MOST_LINES:
        return [
            _memory_curve(together if name == most else "", rss, step, VIOLET, 1.0)
            for name, rss in values.items()
        ]
    every = np.array(list(zip_longest(*values.values(), fillvalue=math.nan)))
    highs, lows = np.fmax.reduce(every, axis=1), np.fmin.reduce(every, axis=1)
    largest = f"{_short(most)}, the largest"
    return [
        _memory_curve(together, highs, step, VIOLET)._replace(lows=lows),
        _memory_curve(largest, values[most], step, VIOLET, 1.0),
    ]


def _bridged(run: RunRecord, process: str) -> np.ndarray:
    """Return the RSS of a process at each step, with the gaps of late samples filled."""
    rss = np.array(run.memory.rss[process], float)
    steps = np.arange(len(rss))
    last = np.maximum.accumulate(np.where(rss > 0, steps, -1))
    is_known = (last >= 0) & ((steps - last) * run.memory.step <= _LATE_SECONDS)
    return np.where(is_known, rss[last], math.nan)


def logged_charts(run: RunRecord) -> list[Chart]:
    """Draw a chart for each of the first keys that have a finite number."""
    charts: list[Chart] = []
    for key, sites in run.logged.curves.items():
        finite = {name: c for name, c in sites.items() if any(map(math.isfinite, c.values))}
        if finite and len(charts) < _MOST_LOGGED:
            unit = "step" if key in run.logged.with_steps else "round"
            title = elide(printable(key), 48)
            lines = {
                name: (c.places if unit == "step" else spread(c.places), c.values)
                for name, c in finite.items()
            }
            chart = curve_chart(title, _logged_curves(lines), "count", "metric", x_title=unit)
            charts.append(chart)
    return charts


def spread(rounds: Sequence[float]) -> list[float]:
    """Return places within rounds: the last value of a round is at the round itself."""
    places: list[float] = []
    for number, group in groupby(rounds):
        count = len(list(group))
        places += [number - 1 + (index + 1) / count for index in range(count)]
    return places


def _logged_curves(sites: Mapping[str, tuple[Values, Values]]) -> list[Curve]:
    """Return a line for each of few sites, the mean of more, and the range of many."""
    if len(sites) <= len(SERIES):
        names = [_short(name) or ("workflow" if len(sites) > 1 else "") for name in sites]
        lines = zip(names, sites.values(), SERIES, strict=False)
        return [Curve(name, *curve, color) for name, curve, color in lines]
    places, means, lows, highs, _ = band_of(list(sites.values()))
    mean = Curve(f"mean of {len(sites)} sites", places, means, INK)
    if len(sites) <= _MOST_LINES:
        return [*(Curve("", *curve, VIOLET, 1.0) for curve in sites.values()), mean]
    return [Curve("range", places, highs, VIOLET, lows=lows), mean]


def _short(name: str) -> str:
    return elide(printable(name), _NAME)
