"""Chart of the seconds of each round, with a colour for each phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import FuncFormatter, MaxNLocator

from flstream.report.charts.style import (
    STEPS,
    add_axes,
    figure,
    ink,
    name_axes,
    second_axis,
    styled,
)

PHASE_COLORS = {
    "download": "blue",
    "train": "green",
    "upload and fold": "orange",
    "checkpoint": "vermilion",
    "evaluate": "pink",
}
"""Names of the colours of a round's phases, by phase."""

# Minimum width of a bar and its gap, in pixels.
_BAR_PIXELS = 9.0
_HEIGHT = 250.0


def seconds_chart(
    rounds: Sequence[int],
    seconds: Mapping[str, Sequence[float]],
    size: float,
    greatest: float | None = None,
) -> Figure:
    """Draw the seconds of rounds as stacked bars.

    If there is no room for a bar for each round, a bar is the mean of several neighbours.

    Args:
        rounds: numbers of the rounds, at least one.
        seconds: seconds of each round, by phase; the phases are stacked in the order of the
            colours.
        size: width in pixels.
        greatest: upper end of the vertical axis in seconds, for charts that are compared; None for
            the highest bar.
    """
    left, right = 58.0, 8.0
    group = -(-len(rounds) // max(int((size - left - right) / _BAR_PIXELS), 1))
    middles, width = _grouped(rounds, group)
    with styled():
        made = figure(size, _HEIGHT)
        axes = add_axes(made, left=left, right=right, top=30)
        bottom = np.zeros(len(middles))
        for phase, color in PHASE_COLORS.items():
            heights, _ = _grouped(seconds[phase], group)
            axes.add_patch(_bars(middles, bottom, heights, width, color))
            bottom += heights
        top = greatest or float(bottom.max()) or 1.0
        axes.set_ylim(0, top * 1.04)
        axes.set_xlim(middles[0] - group * 0.6, middles[-1] + group * 0.6)
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1, steps=STEPS))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        second_axis(axes.yaxis, top)
        means = f", mean of {group} a bar" if group > 1 else ""
        name_axes(axes, "round", f"seconds a round{means}")
    return made


def _grouped(values: Sequence[float], group: int) -> tuple[np.ndarray, float]:
    """Return the means of groups of neighbours, and the width of a bar for a group."""
    whole = np.asarray(values, float)
    starts = range(0, len(whole), group)
    return np.array([whole[start : start + group].mean() for start in starts]), group * 0.72


def _bars(
    middles: np.ndarray, bottoms: np.ndarray, heights: np.ndarray, width: float, color: str
) -> PathPatch:
    """Draw bars as one path; separate patches would take up most of the page's file."""
    left, right, tops = middles - width / 2, middles + width / 2, bottoms + heights
    shown = heights > 0
    corners = np.stack(
        [
            np.stack([left, bottoms], 1),
            np.stack([left, tops], 1),
            np.stack([right, tops], 1),
            np.stack([right, bottoms], 1),
            np.stack([left, bottoms], 1),
        ],
        axis=1,
    )[shown].reshape(-1, 2)
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * int(shown.sum())
    path = Path(corners, codes) if codes else Path(np.empty((0, 2)))
    return PathPatch(path, facecolor=ink(color), edgecolor="none", linewidth=0)
