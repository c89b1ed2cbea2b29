"""The charts of runs for a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest

import numpy as np

from flstream.report.charts.curves import Curve, curve_chart
from flstream.report.charts.drawing import Drawing, drawing
from flstream.report.charts.memory import MemoryView, Shade, memory_chart
from flstream.report.charts.seconds import PHASE_COLORS, seconds_chart
from flstream.report.charts.style import (
    GREEN,
    INK,
    LINE_WIDTH,
    ORANGE,
    PINK,
    VERMILION,
    VIOLET,
    series_color,
)
from flstream.report.metrics import Metric, metrics_of, values_by_round
from flstream.report.record.run import HELPERS, RunRecord
from flstream.report.text import counted, elide
from flstream.runs.round_record import PHASES
from flstream.telemetry.events import SERVER
from flstream.text import printable

# If there are more processes, they are drawn as a range from the lowest to the highest.
_MOST_LINES = 16
_NAME_WIDTH = 14
_HELPER_COLORS = tuple(zip(HELPERS, (GREEN, VERMILION, PINK, ORANGE), strict=True))
# Width of a line that is one of many, in pixels.
_THIN = 1.0
# Maximum delay of a memory sample on a busy machine; a process without samples for longer is gone.
_LATE_SECONDS = 2.0
# Maximum number of metrics with a chart; the others are only in the table.
_MOST_METRICS = 8


def metric_drawings(runs: Sequence[RunRecord], labels: Sequence[str]) -> list[Drawing]:
    """Draw a chart for each metric, with a line for each run that has it.

    Args:
        runs: runs to compare; one or more.
        labels: name of each run.
    """
    metrics = metrics_of([run.summary for run in runs])[:_MOST_METRICS]
    return [_metric_drawing(metric, runs, labels) for metric in metrics]


def _metric_drawing(metric: Metric, runs: Sequence[RunRecord], labels: Sequence[str]) -> Drawing:
    curves = []
    for index, (run, label) in enumerate(zip(runs, labels, strict=True)):
        rounds = values_by_round(run.summary)
        points = {number: each[metric] for number, each in rounds.items() if metric in each}
        best = run.summary.best
        if points:
            curve = Curve(
                elide(printable(label), _NAME_WIDTH),
                list(points),
                list(points.values()),
                series_color(index),
                # Lower lines are thicker, so that those of runs with equal values are all visible.
                LINE_WIDTH + 1.4 * min(len(runs) - 1 - index, 3),
                best=best.round if best and metric == ("", best.metric) else None,
            )
            curves.append(curve)
    title = elide(metric.title, 40)
    return drawing(
        f"{metric.title} over rounds",
        lambda width: curve_chart(title, "round", curves, width),
        is_half=True,
    )


def over_idle_drawing(
    run: RunRecord, *, is_half: bool = False, greatest: float | None = None
) -> Drawing | None:
    """Draw the memory over idle of the server and the workers.

    Args:
        run: the run.
        is_half: whether to draw the narrow chart only.
        greatest: upper end of the vertical axis in bytes; None for the curves' maximum.

    Returns:
        The chart; None if there are no memory samples.
    """
    view = over_idle_view(run)._replace(greatest=greatest)
    return _memory(view, "Resident memory over idle of each process over time", is_half=is_half)


def over_idle_view(run: RunRecord) -> MemoryView:
    """Return the content of the chart of memory over idle."""
    over = {
        name: np.maximum(_bridged(run, name) - rss, 0)
        for name, rss in run.history.timeline.idle_rss.items()
        if rss and name in run.memory.rss and name not in HELPERS
    }
    view = _view(run, "memory over idle (RSS)", over)
    return view._replace(model=run.summary.model.bytes)


def rss_drawing(run: RunRecord) -> Drawing | None:
    """Draw the whole resident memory of every process.

    Args:
        run: the run.

    Returns:
        The chart; None if there are no memory samples.
    """
    rss = {process: _bridged(run, process) for process in run.memory.rss}
    view = _view(run, "resident memory (RSS)", rss)
    return _memory(view, "Resident memory of every process over time")


def seconds_drawing(
    run: RunRecord, *, is_half: bool = False, greatest: float | None = None
) -> Drawing | None:
    """Draw the seconds of each round by phase.

    Args:
        run: the run.
        is_half: whether to draw the narrow chart only.
        greatest: upper end of the vertical axis in seconds; None for the highest bar.

    Returns:
        The chart; None if no round was completed.
    """
    rounds = run.summary.rounds
    if not rounds:
        return None
    numbers = [each.round for each in rounds]
    columns = zip(*(each.phases for each in rounds), strict=True)
    seconds = dict(zip(PHASES, columns, strict=True))
    return drawing(
        "Seconds of each phase over rounds",
        lambda width: seconds_chart(numbers, seconds, width, greatest),
        is_half=is_half,
    )


def _memory(view: MemoryView, text: str, *, is_half: bool = False) -> Drawing | None:
    if not view.curves or not view.seconds:
        return None
    return drawing(text, lambda width: memory_chart(view, width), is_half=is_half)


def _view(run: RunRecord, what: str, values: Mapping[str, np.ndarray]) -> MemoryView:
    """Return a chart's content, with the server's curve above those of workers and helpers."""
    running, step = run.clock.running, run.memory.step
    values = {name: each for name, each in values.items() if np.isfinite(each).any()}
    workers = {name: each for name, each in values.items() if name not in (SERVER, *HELPERS)}
    return MemoryView(
        what=what,
        seconds=run.clock.seconds,
        curves=[
            *(
                _curve(name, values[name], step, color, _THIN)
                for name, color in _HELPER_COLORS
                if name in values
            ),
            *_worker_curves(workers, step, run.shares_workers),
            *([_curve(SERVER, values[SERVER], step, INK)] if SERVER in values else []),
        ],
        shades=[
            Shade(running(span.begin), running(span.end), PHASE_COLORS[span.phase])
            for span in sorted(run.history.timeline.spans, key=lambda span: span.begin)
        ],
        joints=[sitting.start for sitting in run.clock.sittings[1:]],
    )


def _curve(
    label: str, values: np.ndarray, step: float, color: str, width: float = LINE_WIDTH
) -> Curve:
    # Each value is drawn in the middle of its step.
    return Curve(label, (np.arange(len(values)) + 0.5) * step, values, color, width)


def _worker_curves(values: Mapping[str, np.ndarray], step: float, is_shared: bool) -> list[Curve]:
    """Return curves of the workers: a line each, or the range of many and the highest of them."""
    if len(values) <= 1:
        return [_curve(_short(name), each, step, VIOLET) for name, each in values.items()]
    together = counted(len(values), "worker" if is_shared else "site")
    most = max(values, key=lambda name: float(np.nanmax(values[name])))
    if len(values) <= _MOST_LINES:
        return [
            _curve(together if name == most else "", each, step, VIOLET, _THIN)
            for name, each in values.items()
        ]
    every = np.array(list(zip_longest(*values.values(), fillvalue=math.nan)))
    highs, lows = np.fmax.reduce(every, axis=1), np.fmin.reduce(every, axis=1)
    return [
        _curve(together, highs, step, VIOLET)._replace(lows=lows),
        _curve(f"{_short(most)}, the largest", values[most], step, VIOLET, _THIN),
    ]


def _bridged(run: RunRecord, process: str) -> np.ndarray:
    """Return the RSS of a process at each step in bytes, with the gaps of late samples filled.

    Values are NaN where the process did not run.
    """
    step = run.memory.step
    joints = {int(sitting.start / step) for sitting in run.clock.sittings[1:]}
    found: list[float] = []
    last, late = math.nan, 0.0
    for index, value in enumerate(run.memory.rss[process]):
        last, late = (float(value), 0.0) if value else (last, late + step)
        if late > _LATE_SECONDS or (index in joints and not value):
            last = math.nan  # the process has ended
        found.append(last)
    return np.array(found)


def _short(name: str) -> str:
    return elide(printable(name), _NAME_WIDTH)
