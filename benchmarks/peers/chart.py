"""One picture of all tables: bars of what each contestant took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from record import Result

from flstream.report.charts.style import INK, save, series_color, styled
from flstream.units import format_bytes

# Inches of the page.
WIDTH, HEAD, BAR = 14.0, 1.3, 0.36
PEERS = ("flstream", "nvflare", "flower", "pfl")


class Panel(NamedTuple):
    """One figure of all contestants, as bars: its title, the value of each, its label."""

    title: str
    value: Callable[[Result], float]
    label: Callable[[float], str]


EXCHANGE_PANELS = (
    Panel("steady round", lambda each: each.round, lambda value: f"{value:.2f} s"),
    Panel(
        "server's RSS over idle",
        lambda each: each.server_over_idle,
        lambda value: format_bytes(round(value)),
    ),
    Panel(
        "PSS of all processes",
        lambda each: each.peak_pss,
        lambda value: format_bytes(round(value)),
    ),
)
RACE_PANELS = (
    Panel("tasks a second", lambda each: each.tasks_a_second, lambda value: f"{value:,.0f}"),
)


class Part(NamedTuple):
    """Contestants that are drawn under one heading, in several panels side by side."""

    heading: str
    panels: Sequence[Panel]
    results: Sequence[Result]


@styled()
def draw(path: Path, title: str, parts: Sequence[Part]) -> None:
    """Write the picture as a PNG file.

    Args:
        path: of the file.
        title: of the whole.
        parts: from above to below.
    """
    heights = [HEAD + BAR * len(part.results) for part in parts]
    made = Figure(figsize=(WIDTH, sum(heights)))
    made.suptitle(title, x=0, ha="left", fontsize=14)
    rows = made.subfigures(len(parts), height_ratios=heights, squeeze=False)[:, 0]
    for row, (heading, panels, results) in zip(rows, parts, strict=True):
        row.suptitle(f"\n{heading}", x=0, ha="left", fontsize=12, fontweight="bold")
        # All parts have as many columns, so that their bars are alike.
        columns = row.subplots(1, 3, sharey=True)
        for axes, panel in zip(columns, panels, strict=False):
            _bars(axes, panel, results)
        for axes in columns[len(panels) :]:
            axes.set_axis_off()
    save(made, path)


def _bars(axes: Axes, panel: Panel, results: Sequence[Result]) -> None:
    axes.set_title(panel.title)
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    axes.spines["left"].set_visible(True)
    axes.tick_params(labelbottom=False, labelcolor=INK)
    values = [panel.value(each) if each.good else 0.0 for each in results]
    colors = [series_color(PEERS.index(each.contestant.peer)) for each in results]
    bars = axes.barh([each.contestant.label for each in results], values, 0.62, color=colors)
    shown = zip(results, values, strict=True)
    texts = [panel.label(value) if each.good else "failed" for each, value in shown]
    axes.bar_label(bars, texts, padding=6)
    axes.set_xlim(0, max(values, default=0.0) or 1.0)
    axes.set_ylim(len(results) - 0.5, -0.5)
