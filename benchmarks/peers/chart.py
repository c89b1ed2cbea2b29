"""One picture of all tables: bars of what each contestant took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from record import Result

from flstream.report.charts.style import SMALL_SIZE, figure, ink, save, series_color, styled
from flstream.units import format_bytes

# Pixels of the page.
LABELS, PANEL, GAP, BAR, HEAD, FOOT = 180, 215, 75, 26, 64, 16
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


def draw(path: Path, title: str, parts: Sequence[Part]) -> None:
    """Write the picture as a PNG file.

    Args:
        path: of the file.
        title: of the whole.
        parts: from above to below.
    """
    width = LABELS + 3 * (PANEL + GAP)
    heights = [HEAD + BAR * len(results) + FOOT for _, _, results in parts]
    height = 40 + sum(heights)
    with styled():
        made = figure(width, height)
        text: Any = {"color": ink("ink"), "verticalalignment": "top"}
        made.text(16 / width, 1 - 14 / height, title, fontsize=14, **text)
        top = 40.0
        for (heading, panels, results), tall in zip(parts, heights, strict=True):
            made.text(16 / width, 1 - (top + 10) / height, heading, fontweight="bold", **text)
            for index, panel in enumerate(panels):
                left = LABELS + index * (PANEL + GAP)
                bottom = height - top - HEAD - BAR * len(results)
                box = (
                    left / width,
                    bottom / height,
                    PANEL / width,
                    BAR * len(results) / height,
                )
                _bars(made.add_axes(box), panel, results, names=index == 0)
            top += tall
    save(made, path)


def _bars(axes: Axes, panel: Panel, results: Sequence[Result], *, names: bool) -> None:
    axes.patch.set_visible(False)
    for side in ("right", "top", "bottom"):
        axes.spines[side].set_visible(False)
    axes.spines["left"].set_color(ink("faint"))
    axes.tick_params(left=False, bottom=False, labelbottom=False, labelcolor=ink("ink"))
    axes.set_title(panel.title, loc="left", fontsize=SMALL_SIZE, color=ink("muted"))
    axes.set_yticks(range(len(results)))
    axes.set_yticklabels([each.contestant.label for each in results] if names else [])
    axes.set_ylim(len(results) - 0.5, -0.5)
    values = [panel.value(each) if each.good else 0.0 for each in results]
    colors = [series_color(PEERS.index(each.contestant.peer)) for each in results]
    axes.barh(range(len(results)), values, height=0.62, color=colors)
    axes.set_xlim(0, max(values, default=0.0) or 1.0)
    for index, (each, value) in enumerate(zip(results, values, strict=True)):
        axes.annotate(
            panel.label(value) if each.good else "failed",
            (value, index),
            xytext=(6, 0),
            textcoords="offset points",
            verticalalignment="center",
            fontsize=SMALL_SIZE,
            color=ink("ink"),
        )
