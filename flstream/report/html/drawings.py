"""The charts of runs for a page, each for wide and for narrow screens."""

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
from flstream.report.record.run import HELPERS, RunRecord
from flstream.report.text import counted, elide
from flstream.runs.round_record import PHASES
from flstream.telemetry.events import SERVER
from flstream.text import printable
from flstream.units import format_bytes

WIDE, NARROW = 740.0, 350.0
"""Widths of charts in pixels: for the whole text column, and for half of it or a phone."""

# If there are more processes, they are drawn as a range from the lowest to the highest.
_MOST_LINES = 16
_NAME_WIDTH = 14
# Maximum delay of a memory sample on a busy machine; a process without samples for longer is gone.
_LATE_SECONDS = 2.0
# Maximum number of metrics with a chart; the others are only in the table.
_MOST_METRICS = 8


class Drawing(NamedTuple):
    """A chart as SVG.

    Attributes:
        narrow: chart for half the text column or a phone.
        wide: chart for the whole text column; None if there is only the narrow one.
    """

    narrow: Markup
    wide: Markup | None = None


def metric_drawings(
    runs: Sequence[RunRecord], colors: Sequence[str], labels: Sequence[str], name: str = "metric"
) -> list[Drawing]:
    """Draw a chart for each metric, with a line for each run that has it.

    Args:
        runs: runs to compare; one or more.
        colors: colour of each run, as from ``style.ink``.
        labels: name of each run.
        name: beginning of the charts' names, unique in the page.
    """
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
        drawings.append(Drawing(_svg(made, f"{name}-{index}", f"{metric.title} over rounds")))
    return drawings


def over_idle_drawing(
    run: RunRecord, name: str, *, is_half: bool = False, greatest: float | None = None
) -> Drawing | None:
    """Draw the memory over idle of the server and the workers.

    Args:
        run: the run.
        name: name of the chart, unique in the page.
        is_half: whether to draw the narrow chart only.
        greatest: upper end of the vertical axis in bytes; None for the curves' maximum.

    Returns:
        The chart; None if there are no memory samples.
    """
    view = over_idle_view(run)._replace(greatest=greatest)
    if not view.curves or not view.seconds:
        return None
    return _memory(view, name, "Resident memory over idle of each process over time", is_half)


def over_idle_view(run: RunRecord) -> MemoryView:
    """Return the content of the chart of memory over idle."""
    idle = {
        name: rss
        for name, rss in run.history.timeline.idle_rss.items()
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
    """Draw the whole resident memory of every process.

    Args:
        run: the run.
        name: name of the chart, unique in the page.

    Returns:
        The chart; None if there are no memory samples.
    """
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
    """Draw the seconds of each round by phase.

    Args:
        run: the run.
        name: name of the chart, unique in the page.
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
            for span in sorted(run.history.timeline.spans, key=lambda span: span.begin)
        ],
        joints=[sitting.start for sitting in run.clock.sittings[1:]],
    )


def _worker_curves(values: Mapping[str, Sequence[float]], is_shared: bool) -> list[MemoryCurve]:
    """Return curves of the workers: a line each, or the range of many and the highest of them."""
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
