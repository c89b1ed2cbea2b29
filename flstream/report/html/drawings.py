"""The charts of a run, drawn for a page: each for a screen and for a phone, where that differs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup
from matplotlib.figure import Figure

from flstream.report.charts.memory import Mark, MemoryCurve, MemoryView, Shade, memory_chart
from flstream.report.charts.metrics import MetricCurve, metric_chart
from flstream.report.charts.seconds import PHASE_COLORS, seconds_chart
from flstream.report.charts.style import ink
from flstream.report.charts.svg import to_svg
from flstream.report.metrics import metrics_of, values_by_round
from flstream.report.record.events import PHASES
from flstream.report.record.run import HELPERS, RunRecord
from flstream.report.text import counted, elide, printable
from flstream.telemetry.events import SERVER
from flstream.units import format_bytes

WIDE, NARROW = 740.0, 350.0
"""Pixels of a chart that takes the whole column of text, and of one that takes half, or a phone."""

# More processes than this are drawn as the range that they take up together.
_MOST_LINES = 16
_NAME_WIDTH = 14
# A busy machine samples late by so many seconds at most; a process without samples is gone.
_LATE_SECONDS = 2.0
# Metrics of more names than this are only in the table.
_MOST_METRICS = 8


class Drawing(NamedTuple):
    """A chart as SVG.

    Attributes:
        narrow: for half a column, or a phone.
        wide: for the whole column; None where the narrow one serves for both.
    """

    narrow: Markup
    wide: Markup | None = None


def metric_drawings(
    runs: Sequence[RunRecord], colors: Sequence[str], labels: Sequence[str]
) -> list[Drawing]:
    """A chart for each metric, with a line for each run that has it."""
    drawings = []
    summaries = [run.summary for run in runs]
    rounds = [values_by_round(summary) for summary in summaries]
    for index, metric in enumerate(metrics_of(summaries)[:_MOST_METRICS]):
        curves = []
        for summary, values, color, label in zip(summaries, rounds, colors, labels, strict=True):
            points = {number: each[metric] for number, each in values.items() if metric in each}
            best = summary.best
            if points:
                curves.append(
                    MetricCurve(
                        elide(printable(label), _NAME_WIDTH),
                        list(points),
                        list(points.values()),
                        color,
                        best.round if best and metric == ("", best.metric) else None,
                    )
                )
        made = metric_chart(elide(metric.title, 40), curves, NARROW)
        drawings.append(Drawing(_svg(made, f"metric-{index}", f"{metric.title} over rounds")))
    return drawings


def over_idle_drawing(
    run: RunRecord, name: str, *, is_half: bool = False, greatest: float | None = None
) -> Drawing | None:
    """Memory over idle of the server and the processes of sites; None without samples."""
    view = over_idle_view(run)._replace(greatest=greatest)
    if not view.curves or not view.seconds:
        return None
    return _memory(view, name, "Resident memory over idle of each process over time", is_half)


def over_idle_view(run: RunRecord) -> MemoryView:
    """What the chart of memory over idle shows."""
    idle = {
        name: rss
        for name, rss in run.events.idle_rss.items()
        if rss and name in run.memory.rss and name not in HELPERS
    }
    over = {
        name: [max(value - rss, 0.0) for value in _bridged(run, name)] for name, rss in idle.items()
    }
    server = over.pop(SERVER, None)
    curves = _worker_curves(over, run.shares_workers)
    if server is not None:
        curves.append(MemoryCurve("server", server, ink("ink")))
    size = run.summary.model.bytes
    level = Mark(size, f"model {format_bytes(size)}") if size else None
    return _view(run, "memory over idle (RSS)", curves)._replace(level=level)


def rss_drawing(run: RunRecord, name: str) -> Drawing | None:
    """Resident memory of every process, all counted; None without samples."""
    rss = {process: _bridged(run, process) for process in run.memory.rss}
    helpers = [
        MemoryCurve(printable(process), rss.pop(process), ink("muted"), is_thin=True)
        for process in HELPERS
        if process in rss
    ]
    server = rss.pop(SERVER, None)
    curves = [*helpers, *_worker_curves(rss, run.shares_workers)]
    if server is not None:
        curves.append(MemoryCurve("server", server, ink("ink")))
    view = _view(run, "resident memory (RSS)", curves)
    if not view.curves or not view.seconds:
        return None
    return _memory(view, name, "Resident memory of every process over time", is_half=False)


def seconds_drawing(
    run: RunRecord, name: str, *, is_half: bool = False, greatest: float | None = None
) -> Drawing | None:
    """Where the seconds of each round went; None if no round was completed."""
    rounds = run.summary.rounds
    if not rounds:
        return None
    numbers = [each.round for each in rounds]
    columns = zip(*(each.phases for each in rounds), strict=True)
    seconds = dict(zip(PHASES, columns, strict=True))
    text = "Seconds of each phase over rounds"
    narrow = _svg(seconds_chart(numbers, seconds, NARROW, greatest), f"{name}-narrow", text)
    if is_half:
        return Drawing(narrow)
    return Drawing(narrow, _svg(seconds_chart(numbers, seconds, WIDE, greatest), name, text))


def _view(run: RunRecord, what: str, curves: Sequence[MemoryCurve]) -> MemoryView:
    running = run.clock.running
    return MemoryView(
        what=what,
        step=run.memory.step,
        seconds=run.clock.seconds,
        curves=curves,
        shades=[
            Shade(running(span.begin), running(span.end), ink(PHASE_COLORS[span.phase]))
            for span in sorted(run.events.spans, key=lambda span: span.begin)
        ],
        joints=[sitting.start for sitting in run.clock.sittings[1:]],
    )


def _worker_curves(values: Mapping[str, Sequence[float]], is_shared: bool) -> list[MemoryCurve]:
    """Curves of the processes of sites: a line each, or the range of many and the highest."""
    color = ink("violet")
    alive = {name: each for name, each in values.items() if not all(map(math.isnan, each))}
    if len(alive) <= 1:
        return [MemoryCurve(_short(name), each, color) for name, each in alive.items()]
    together = counted(len(alive), "worker" if is_shared else "site")
    most = max(alive, key=lambda name: max(x for x in alive[name] if not math.isnan(x)))
    if len(alive) <= _MOST_LINES:
        return [
            MemoryCurve(
                together if name == most else "",
                each,
                color,
                is_thin=True,
            )
            for name, each in alive.items()
        ]
    length = max(map(len, alive.values()))
    columns = [
        [each[index] for each in alive.values() if index < len(each)] for index in range(length)
    ]
    known = [[x for x in column if not math.isnan(x)] for column in columns]
    lows = [min(column, default=math.nan) for column in known]
    highs = [max(column, default=math.nan) for column in known]
    return [
        MemoryCurve(together, highs, color, lows=lows),
        MemoryCurve(f"{_short(most)}, the largest", alive[most], color, is_thin=True),
    ]


def _bridged(run: RunRecord, process: str) -> list[float]:
    """RSS of a process at each step: NaN where it was not there, not where a sample came late."""
    step = run.memory.step
    joints = {int(sitting.start / step) for sitting in run.clock.sittings[1:]}
    found: list[float] = []
    last, late = math.nan, 0.0
    for index, value in enumerate(run.memory.rss[process]):
        last, late = (float(value), 0.0) if value else (last, late + step)
        if late > _LATE_SECONDS or (index in joints and not value):
            last = math.nan  # it is gone, and does not come back by being late
        found.append(last)
    return found


def _short(name: str) -> str:
    return elide(printable(name), _NAME_WIDTH)


def _memory(view: MemoryView, name: str, text: str, is_half: bool) -> Drawing:
    narrow = _svg(memory_chart(view, NARROW, 260), f"{name}-narrow", text)
    if is_half:
        return Drawing(narrow)
    return Drawing(narrow, _svg(memory_chart(view, WIDE), name, text))


def _svg(made: Figure, name: str, text: str) -> Markup:
    return Markup(to_svg(made, name, text))
