"""Bar charts of a bench on a terminal: a bar for each case, on one scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from flstream.bench.compare import Result
from flstream.bench.plan import Mode, Plan
from flstream.report.text import pad
from flstream.units import format_bytes

# Maximum width of a chart, in columns.
_MOST_COLUMNS = 100
_STYLES: dict[Mode, str] = {
    "pull": "cyan",
    "native": "yellow",
    "map": "blue",
    "file": "green",
}


class Glyphs(NamedTuple):
    """Characters for drawing bars.

    Attributes:
        parts: characters for the first, second and third part of a bar.
        least: character for a value that is not zero but too small to see.
        predicted: character for a value that was predicted, not measured.
        eighths: characters for one to seven eighths of a column; empty if the encoding has none.
    """

    parts: tuple[str, str, str]
    least: str
    predicted: str
    eighths: str


_BLOCKS = Glyphs(("█", "▓", "░"), "▏", "┄", "▏▎▍▌▋▊▉")
_ASCII = Glyphs(("#", "=", "-"), "|", ".", "")


class Bar(NamedTuple):
    """A bar of a chart.

    Attributes:
        label: text at the left of the bar.
        parts: values that are stacked, in the chart's units.
        text: text at the right of the bar.
        style: style of the bar, as rich names it.
        predicted: whether the value was predicted, not measured.
    """

    label: str
    parts: tuple[float, ...]
    text: str
    style: str
    predicted: bool = False


Chart = tuple[str, list[Text]]
"""Title of a chart, and its lines."""


def memory_bars(console: Console, plan: Plan, results: Sequence[Result]) -> list[Chart]:
    """Draw charts of the server's memory and of a client's, with a bar of the model's size."""
    model = Bar("the model", (plan.model_bytes,), format_bytes(plan.model_bytes), "dim")
    charts = []
    for name, measured, predicted in (
        (
            "Server memory over idle (RSS)",
            lambda result: result.median.server_peak_rss,
            lambda result: result.need.server,
        ),
        (
            "Client memory over idle (RSS, the largest)",
            lambda result: result.median.client_peak_rss,
            lambda result: result.need.client,
        ),
    ):
        bars = [model, *(_memory_bar(each, measured, predicted) for each in results)]
        charts.append((name, draw(console, bars)))
    return charts


def second_bars(console: Console, results: Sequence[Result]) -> list[Chart]:
    """Draw a chart of the seconds of a round, by phase; return nothing without measurements."""
    bars = []
    for result in results:
        run = result.median
        if run is not None:
            parts = run.download, run.upload_and_fold, run.checkpoint
            style = _STYLES[result.case.mode]
            bars.append(Bar(result.label, parts, f"{sum(parts):.2f} s", style))
    if not bars:
        return []
    down, up, durable = glyphs(console).parts
    title = f"Seconds of a round ({down} down, {up} up and fold, {durable} durable)"
    return [(title, draw(console, bars))]


def _memory_bar(
    result: Result, measured: Callable[[Result], float], predicted: Callable[[Result], int]
) -> Bar:
    style = _STYLES[result.case.mode]
    if result.runs:
        size = round(measured(result))
        return Bar(result.label, (size,), format_bytes(size), style)
    size = predicted(result)
    text = f"about {format_bytes(size)}, predicted"
    return Bar(result.label, (size,), text, style, predicted=True)


def glyphs(console: Console) -> Glyphs:
    """Return the characters for bars that a console's encoding has."""
    return _ASCII if console.options.ascii_only else _BLOCKS


def draw(console: Console, bars: Sequence[Bar]) -> list[Text]:
    """Draw bars, a line each, none wider than the console."""
    width = min(console.width, _MOST_COLUMNS)
    labels = max(len(bar.label) for bar in bars)
    texts = max(len(bar.text) for bar in bars)
    room = max(width - labels - texts - 4, 8)
    greatest = max(sum(bar.parts) for bar in bars) or 1.0
    signs = glyphs(console)
    lines = []
    for bar in bars:
        drawn = _drawn(bar, room / greatest, signs)
        line = Text(pad(bar.label, labels) + "  ")
        line.append(drawn, style=bar.style)
        line.append(f"{' ' if drawn else ''}{bar.text}")
        lines.append(line)
    return lines


def _drawn(bar: Bar, columns_a_unit: float, signs: Glyphs) -> str:
    """Draw a bar. Each part ends at the rounded sum so far, so that errors do not add up."""
    if bar.predicted:
        return signs.predicted * max(round(bar.parts[0] * columns_a_unit), 1)
    drawn, end = "", 0.0
    for part, sign in zip(bar.parts, signs.parts, strict=False):
        end += part * columns_a_unit
        drawn += sign * (round(end) - len(drawn))
    if len(bar.parts) == 1 and signs.eighths:
        whole, rest = divmod(round(end * 8), 8)
        drawn = signs.parts[0] * whole + (signs.eighths[rest - 1] if rest else "")
    return drawn or (signs.least if end else "")
