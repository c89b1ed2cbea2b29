"""Chart of the seconds of each round, with a colour for each phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from flstream.report.charts.style import (
    BLUE,
    GREEN,
    ORANGE,
    PINK,
    VERMILION,
    count_axis,
    new_chart,
    second_axis,
    styled,
)

PHASE_COLORS = {
    "download": BLUE,
    "train": GREEN,
    "upload and fold": ORANGE,
    "checkpoint": VERMILION,
    "evaluate": PINK,
}
"""Colours of a round's phases, by phase."""

# Least width of a bar and its gap, in pixels.
_BAR = 10.0
_HEIGHT = 240.0


@styled()
def seconds_chart(
    rounds: Sequence[int],
    seconds: Mapping[str, Sequence[float]],
    width: float,
    greatest: float | None = None,
) -> Figure:
    """Draw the seconds of rounds as stacked bars.

    If there is no room for a bar for each round, a bar is the mean of several neighbours.

    Args:
        rounds: numbers of the rounds, at least one.
        seconds: seconds of each round, by phase; the phases are stacked in the order of the
            colours.
        width: width in pixels.
        greatest: upper end of the vertical axis in seconds, for charts that are compared; None for
            the highest bar.
    """
    group = int(len(rounds) * _BAR / width) + 1
    means = f", mean of {group} a bar" if group > 1 else ""
    made, axes = new_chart(width, _HEIGHT, "round", f"seconds a round{means}")
    middles, bottom = _means(rounds, group), np.zeros(len(rounds[::group]))
    for phase, color in PHASE_COLORS.items():
        heights = _means(seconds[phase], group)
        axes.bar(middles, heights, group * 0.72, bottom, color=color)
        bottom += heights
    top = greatest or float(bottom.max()) or 1.0
    axes.set_ylim(0, top * 1.04)
    count_axis(axes.xaxis)
    second_axis(axes.yaxis, top)
    return made


def _means(values: Sequence[float], group: int) -> np.ndarray:
    """Return the means of groups of neighbours."""
    starts = range(0, len(values), group)
    return np.array([np.mean(values[start : start + group]) for start in starts])
