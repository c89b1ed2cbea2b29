"""Charts of one run or several: metrics, memory, seconds, logged values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np

from flstream.job.keys import short_keys
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
    curve_chart,
)
from flstream.report.memory_curves import HELPERS
from flstream.report.metric_axes import ROUNDS, MetricAxis, on_common_places, places_on
from flstream.report.metrics import Metric, metrics_of, order_metrics
from flstream.report.run_record import RunRecord
from flstream.report.text import counted, elide, path_labels
from flstream.runs.history import PHASES
from flstream.telemetry.events import SERVER
from flstream.text import printable
from flstream.units import format_bytes

PHASE_COLORS = dict(zip(PHASES, (BLUE, GREEN, ORANGE, VERMILION, PINK), strict=True))
"""Colours of a round's phases, as CSS names them."""

_MOST_METRICS, _MOST_LOGGED, _MOST_BARS, _NAME = 8, 12, 70, 16
_MOST_LINES, _LABEL = 8, 100
_MOST_BY_SITE, _MOST_EVALUATIONS = 4, 200


def series_color(index: int) -> str:
    """Return the colour of a compared run, by its index."""
    return SERIES[index % len(SERIES)]


class RunGroup(NamedTuple):
    """Group of compared runs, one line in charts.

    Attributes:
        label: Label, which no other group has.
        runs: Indices of its runs.
        color: Colour of its line; empty for a group that charts leave out.
    """

    label: str
    runs: Sequence[int]
    color: str


def run_groups(
    runs: Sequence[RunRecord],
    labels: Sequence[str],
    group_by: Sequence[str] = (),
    over: str = "seed",
) -> list[RunGroup]:
    """Group runs that differ in one key alone, or those with the same values of some keys.

    Args:
        runs: The runs.
        labels: Their labels.
        group_by: Dotted keys by whose values runs are grouped; none for all keys but ``over``.
        over: Key that tells the runs of a group apart, with those that have its value in each run.

    Returns:
        The groups; if one has several runs, they are labelled by the settings in which they differ.
    """
    members = _members(runs, group_by, over)
    drawn = _leading(members, runs)
    names = list(labels)
    if group_by or len(members) < len(runs):
        firsts = [runs[group[0]] for group in members]
        keys = _telling_keys(firsts, group_by or differing_keys(firsts, _following(runs, over)))
        short = short_keys(keys or group_by)
        texts = {key: _value_texts(firsts, key) for key in short}
        for place, group in enumerate(members):
            parts = (f"{short[key]}={text}" for key in short if (text := texts[key][place]))
            names[group[0]] = printable(", ".join(parts)) or names[group[0]]
    counts = Counter(names[group[0]] for group in members)
    groups = []
    for group in members:
        name, first = names[group[0]], labels[group[0]]
        color = series_color(drawn.index(group)) if group in drawn else ""
        groups.append(RunGroup(f"{name} ({first})" if counts[name] > 1 else name, group, color))
    return groups


def _members(runs: Sequence[RunRecord], group_by: Sequence[str], over: str) -> list[list[int]]:
    """Return the indices of each group's runs."""
    groups: dict[object, list[int]] = {}
    left_out = _following(runs, over)
    for index, run in enumerate(runs):
        if group_by:
            groups.setdefault(tuple(run.values.get(key) for key in group_by), []).append(index)
            continue
        values = tuple((key, value) for key, value in run.values.items() if key not in left_out)
        place = run.values.get(over)
        is_new = any(runs[other].values.get(over) == place for other in groups.get(values, []))
        # A run without settings is like no other, and nor is a repetition.
        groups.setdefault(index if is_new or not values else values, []).append(index)
    return list(groups.values())


def _following(runs: Sequence[RunRecord], over: str) -> set[str]:
    """Return a key and those with its value in each run, as ``split_seed = ${seed}`` has it."""
    same = [
        {key for key, value in run.values.items() if value == run.values.get(over)} for run in runs
    ]
    return {over} | set.intersection(*same)


def _leading(members: Sequence[list[int]], runs: Sequence[RunRecord]) -> list[list[int]]:
    """Return the groups that charts draw: at most eight, those with the best mean score."""
    if len(members) <= _MOST_LINES:
        return list(members)
    modes = (value for key, value in runs[0].values.items() if key.endswith("key_metric_mode"))
    sign = 1 if '"min"' in modes else -1

    def place(group: Sequence[int]) -> float:
        scores = [best.value for at in group if (best := runs[at].summary.best) is not None]
        return sign * mean(scores) if scores else math.inf

    ranked = sorted(members, key=place)[:_MOST_LINES]
    return [group for group in members if group in ranked]


def _telling_keys(runs: Sequence[RunRecord], keys: Sequence[str]) -> list[str]:
    """Return those of the keys that tell runs apart which the keys before them do not."""
    telling, known = list[str](), 1
    for key in keys:
        values = {tuple(run.values.get(each) for each in (*telling, key)) for run in runs}
        if len(values) > known:
            telling.append(key)
            known = len(values)
    return telling


def _value_texts(runs: Sequence[RunRecord], key: str) -> list[str]:
    """Return a setting's value in each run as labels have it; of paths, what tells them apart."""
    texts = [run.values.get(key, "").strip('"') for run in runs]
    paths = {text: Path(text) for text in texts if text.startswith("/")}
    short = dict(zip(paths, path_labels([*paths.values()]), strict=True)) if paths else {}
    return [short.get(text, text) for text in texts]


def all_keys(runs: Sequence[RunRecord]) -> list[str]:
    """Return the keys that any run has; those that all have come first."""
    counts = Counter(key for run in runs for key in run.values)
    return sorted(counts, key=lambda key: counts[key] < len(runs))


def differing_keys(runs: Sequence[RunRecord], but: Collection[str] = ()) -> list[str]:
    """Return the keys but some whose values differ; to lack a key is a value, too."""
    keys = [key for key in all_keys(runs) if key not in but]
    return [key for key in keys if len({run.values.get(key) for run in runs}) > 1]


def varying_keys(runs: Sequence[RunRecord], groups: Sequence[RunGroup]) -> list[str]:
    """Return the keys in which runs of a group differ, by their short names."""
    varying = (differing_keys([runs[at] for at in group.runs]) for group in groups)
    return [*short_keys(dict.fromkeys(key for keys in varying for key in keys)).values()]


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
        shared = lines
        if len(lines) > 1:
            shared = _within_all(lines) if axis == ROUNDS else on_common_places(lines)
        if len(lines) > 1 and len(shared[0][0]):
            places, means, _, _, deviations = band_of(shared)
            prefix = f"{name}, " if len(runs) > len(group.runs) else ""
            label, sd = f"{prefix}mean of {counted(len(lines), 'run')}", "\N{PLUS-MINUS SIGN} sd"
            low, high, legend = means - deviations, means + deviations, "" if place else sd
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


def _within_all(lines: Sequence[tuple[Values, Values]]) -> list[tuple[Values, Values]]:
    """Return lines from where the last of them begins to where the first one ends."""
    begin, end = max(places[0] for places, _ in lines), min(places[-1] for places, _ in lines)
    kept: list[tuple[Values, Values]] = []
    for places, values in lines:
        own = [at for at, place in enumerate(places) if begin <= place <= end]
        kept.append(([places[at] for at in own], [values[at] for at in own]))
    return kept


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
