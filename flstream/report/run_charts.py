"""Charts of one run or several: metrics, memory, seconds, logged values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

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
    Unit,
    Values,
    band_of,
    curve_chart,
)
from flstream.report.memory_curves import HELPERS
from flstream.report.metrics import Metric, metrics_of, order_metrics
from flstream.report.run_groups import RunGroup
from flstream.report.run_record import RunRecord
from flstream.report.text import counted, elide
from flstream.runs.history import PHASES
from flstream.telemetry.events import SERVER
from flstream.text import printable
from flstream.units import format_bytes

PHASE_COLORS = dict(zip(PHASES, (BLUE, GREEN, ORANGE, VERMILION, PINK), strict=True))
"""Colours of a round's phases, as CSS names them."""

_MOST_METRICS, _MOST_LOGGED, _MOST_BARS, _NAME = 8, 12, 70, 16
_MOST_LINES, _LABEL, _MOST_PLACES = 8, 100, 200
_MOST_BY_SITE, _MOST_EVALUATIONS = 4, 200


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
    has_times = any(run.simulated_seconds is not None for run in runs)
    return [ROUNDS, TIME, BYTES] if has_times else [ROUNDS]


def places_on(axis: MetricAxis, run: RunRecord) -> Mapping[int, float] | None:
    """Return the place of each round's model on an axis, by number; None for the numbers."""
    if axis == TIME:
        return run.round_ends
    if axis == BYTES:
        rounds = run.history.rounds
        moved = accumulate(record.down.bytes + record.up.bytes for record in rounds)
        return {0: 0.0} | dict(zip((record.number for record in rounds), moved, strict=True))
    return None


def on_common_places(lines: Sequence[tuple[Values, Values]]) -> list[tuple[Values, Values]]:
    """Return lines with values at the same places, in between by a straight line.

    These are the places at which all of them have values, or none.
    """
    begin = max(float(places[0]) for places, _ in lines)
    end = min(float(places[-1]) for places, _ in lines)
    every = np.unique(np.concatenate([np.asarray(places, float) for places, _ in lines]))
    common = every[(begin <= every) & (every <= end)]
    if len(common) > _MOST_PLACES:
        common = common[np.linspace(0, len(common) - 1, _MOST_PLACES).astype(int)]
    return [(common, np.interp(common, *line)) for line in lines]


def metric_charts(
    runs: Sequence[RunRecord], groups: Sequence[RunGroup], axis: MetricAxis = ROUNDS
) -> list[Chart]:
    """Draw a chart for each metric: a line for each run, or the mean and spread of a group.

    A mean is drawn as far as all runs of its group have come.
    """
    metrics = metrics_of([run.summary for run in runs])[:_MOST_METRICS]
    rounds = [run.metrics for run in runs]
    drawn = [group for group in groups if group.color]
    places_of = [places_on(axis, run) for run in runs]

    def points(index: int, metric: Metric) -> tuple[Values, Values]:
        values = {number: row[metric] for number, row in rounds[index].items() if metric in row}
        if (places := places_of[index]) is not None:
            values = {number: value for number, value in values.items() if number in places}
            return [places[number] for number in values], list(values.values())
        return list(values), list(values.values())

    def curves(metric: Metric, group: RunGroup, place: int) -> list[Curve]:
        lines = [line for line in (points(index, metric) for index in group.runs) if line[0]]
        color, name = group.color, elide(group.label, _LABEL)
        shared = on_common_places(lines) if len(lines) > 1 else lines
        if len(lines) > 1 and len(shared[0][0]):
            places, means, _, _, deviations = band_of(shared)
            prefix = f"{name}, " if len(runs) > len(group.runs) else ""
            label, sd = f"{prefix}mean of {counted(len(lines), 'run')}", "\N{PLUS-MINUS SIGN} sd"
            low, high, legend = means - deviations, means + deviations, "" if len(drawn) > 1 else sd
            band = Curve(legend, places, high, color, lows=low, name=f"{prefix}{sd}")
            thin = [Curve("", *line, color, 0.6) for line in lines if len(drawn) == 1]
            return [band, *thin, Curve(label, places, means, color)]
        best = runs[group.runs[0]].summary.best
        is_key = best is not None and metric == ("", best.metric)
        mark: float | None = best.round if best is not None and is_key else None
        if mark is not None and (own := places_of[group.runs[0]]) is not None:
            mark = own.get(int(mark))
        # Lower lines are thicker, so that those of equal runs are all visible.
        width = 1.8 + 1.4 * min(len(drawn) - 1 - place, 3)
        label = name if len(runs) > 1 else ""
        return [
            Curve("" if at else label, *line, color, width, best=mark)
            for at, line in enumerate(lines)
        ]

    over = f" over {axis.words}" if axis != ROUNDS else ""
    charts = []
    for metric in metrics:
        own = [curve for place, group in enumerate(drawn) for curve in curves(metric, group, place)]
        if own:
            title = f"{metric.title}{over}"
            charts.append(curve_chart(title, own, axis.unit, "metric", x_title=axis.title))
    return charts


def site_charts(run: RunRecord) -> list[Chart]:
    """Draw the spread over sites of each metric that sites scored."""
    scores = run.history.site_scores
    charts: list[Chart] = []
    metrics = order_metrics(
        (Metric("", name) for scored in scores.values() for name in scored.columns),
        [Metric("", run.history.facts.key_metric)],
    )
    for metric in metrics[:_MOST_BY_SITE]:
        columns = dict[int, np.ndarray]()
        for number, scored in scores.items():
            if metric.name in scored.columns:
                columns[number] = np.full(len(run.history.facts.sites), np.nan)
                columns[number][scored.numbers] = scored.columns[metric.name]
        rounds = sorted(n for n, column in columns.items() if np.isfinite(column).sum() > 1)
        if rounds:
            steps = np.linspace(0, len(rounds) - 1, min(len(rounds), _MOST_EVALUATIONS)).astype(int)
            values = {rounds[step]: columns[rounds[step]] for step in steps}
            curves, title = _site_curves(run, metric, values), f"{metric.title} by site"
            charts.append(curve_chart(title, curves, "count", "metric", x_title="round"))
    return charts


@np.errstate(over="ignore")  # of a mean of the largest floats
def _site_curves(run: RunRecord, metric: Metric, columns: Mapping[int, np.ndarray]) -> list[Curve]:
    """Return a metric's bands over sites, few sites' lines, the mean, and the last two ends."""
    facts, rounds, values = run.history.facts, list(columns), np.array(list(columns.values()))
    scored = np.flatnonzero(np.isfinite(values).any(axis=0))
    low, lower, upper, high = np.nanquantile(values, [0, 0.25, 0.75, 1], axis=1)
    curves = [Curve("lowest to highest", rounds, high, VIOLET, lows=low)]
    if len(scored) > _MOST_LINES:
        curves.append(Curve("middle half", rounds, upper, VIOLET, lows=lower))
    else:
        lines = {facts.sites[at]: values[:, at] for at in scored}
        curves += [Curve("", rounds, line, VIOLET, 0.7, name=site) for site, line in lines.items()]
    label = f"mean of {counted(len(scored), 'site')}"
    curves.append(Curve(label, rounds, np.nanmean(values, axis=1), VIOLET))
    words, ends = ("highest", "lowest"), (high[-1], low[-1])
    if metric.name == facts.key_metric:
        words, ends = ("best", "worst"), ends if facts.key_metric_mode == "max" else ends[::-1]
    for word, end, color in zip(words, ends, (GREEN, VERMILION), strict=True):
        names = [facts.sites[at] for at in np.flatnonzero(values[-1] == end)]
        more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        label = f"{word}: {_short(names[0])}{more}"
        curves.append(Curve(label, rounds[-1:], [end], color, name=""))
    return curves


def seconds_chart(run: RunRecord, top: float | None = None) -> Chart | None:
    """Draw the seconds of each round by phase; None if no round was completed.

    With many rounds a step is the mean of several.
    """
    rounds = run.summary.rounds
    if not rounds:
        return None
    seconds = np.array([summary.phases for summary in rounds])
    group = -(-len(rounds) // _MOST_BARS)
    starts = np.arange(0, len(rounds), group)
    ends = np.append(starts[1:], len(rounds))
    means = np.add.reduceat(seconds, starts) / (ends - starts)[:, np.newaxis]
    tops = np.cumsum(means, axis=1)
    places = rounds[0].round - 0.5 + np.column_stack([starts, ends]).ravel()
    curves = [
        Curve(
            phase,
            places,
            np.repeat(tops[:, at], 2),
            PHASE_COLORS[phase],
            lows=np.repeat(tops[:, at] - means[:, at], 2),
            opacity=1.0,
            name="",
        )
        for at, phase in enumerate(PHASES)
    ]
    # Lines that nobody sees have the seconds that are shown on hover.
    middles = places.reshape(-1, 2).mean(axis=1)
    for at, (phase, color) in enumerate(PHASE_COLORS.items()):
        curves.append(Curve("", middles, means[:, at], color, 0.0, name=phase))
    x_title = f"round, means of {group}" if group > 1 else "round"
    title = "seconds of each round"
    return curve_chart(title, curves, "count", "seconds", top=top, x_title=x_title)


def over_idle_chart(run: RunRecord, top: float | None = None) -> Chart | None:
    """Draw the memory over idle of server and workers, beside the model's size."""
    curves = _memory_curves(run, run.over_idle)
    if not curves:
        return None
    if model := run.summary.model.bytes:
        ends = [0.0, max(curve.places[-1] for curve in curves)]
        label = f"model {format_bytes(model)}"
        curves.append(Curve(label, ends, [model] * 2, INK, 1.2, is_dashed=True, name=""))
    return _memory_chart(run, "memory over idle (RSS)", curves, top)


def resident_chart(run: RunRecord) -> Chart | None:
    """Draw the resident memory of all of a run's processes."""
    curves = _memory_curves(run, {name: run.memory.resident(name) for name in run.memory.rss})
    return _memory_chart(run, "resident memory (RSS)", curves, None) if curves else None


def _memory_chart(run: RunRecord, title: str, curves: list[Curve], top: float | None) -> Chart:
    return curve_chart(title, curves, "seconds", "bytes", marks=run.resumed_at, top=top)


def _memory_curves(run: RunRecord, values: Mapping[str, np.ndarray]) -> list[Curve]:
    # Each value is drawn in the middle of its step.
    lines = {
        name: ((np.arange(len(rss)) + 0.5) * run.memory.step, rss)
        for name, rss in values.items()
        if np.isfinite(rss).any()
    }
    server = lines.pop(SERVER, None)
    curves = [
        Curve(name, *lines.pop(name), color, 1.0, is_dashed=True)
        for name, color in zip(HELPERS, reversed(SERIES), strict=False)
        if name in lines
    ]
    curves += _bundle(lines, "workers")
    return [*curves, Curve(SERVER, *server, INK)] if server else curves


def logged_charts(run: RunRecord) -> list[Chart]:
    """Draw a chart for each of the first keys that have a finite number."""
    charts: list[Chart] = []
    for key, sites in run.logged.curves.items():
        unit = "step" if key in run.logged.with_steps else "round"
        lines = {
            printable(site) or ("workflow" if len(sites) > 1 else ""): (
                curve.places if unit == "step" else spread(curve.places),
                curve.values,
            )
            for site, curve in sites.items()
            if any(map(math.isfinite, curve.values))
        }
        if lines and len(charts) < _MOST_LOGGED:
            title, curves = elide(printable(key), 48), _bundle(lines, "sites")
            charts.append(curve_chart(title, curves, "count", "metric", x_title=unit))
    return charts


def spread(rounds: Sequence[float]) -> list[float]:
    """Return places within rounds; the last value of a round is at the round itself."""
    places: list[float] = []
    for number, group in groupby(rounds):
        count = len(list(group))
        places += [number - 1 + (index + 1) / count for index in range(count)]
    return places


def _bundle(lines: Mapping[str, tuple[Values, Values]], noun: str) -> list[Curve]:
    """Return a line each for few sites or workers, or the range and mean of many."""
    if len(lines) <= len(SERIES):
        pairs = zip(lines.items(), SERIES, strict=False)
        return [Curve(_short(name), *line, color) for (name, line), color in pairs]
    places, means, lows, highs, _ = band_of(list(lines.values()))
    mean = Curve(f"mean of {len(lines):,} {noun}", places, means, VIOLET)
    return [Curve("range", places, highs, VIOLET, lows=lows), mean]


def _short(name: str) -> str:
    return elide(printable(name), _NAME)
