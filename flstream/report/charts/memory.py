"""Chart of the memory of processes over time, with the model's size and the phases."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from flstream.report.charts.curves import Curve, add_legend, draw_curve
from flstream.report.charts.style import INK, MUTED, byte_axis, new_chart, second_axis, styled
from flstream.units import format_bytes

_HEIGHT = 240.0
# Time is divided into so many parts, each of which has the colour of one phase.
_PARTS = 400


class Shade(NamedTuple):
    """A coloured interval of time.

    Attributes:
        begin: beginning of the interval in seconds.
        end: end of the interval in seconds.
        color: hexadecimal colour of the phase in the interval.
    """

    begin: float
    end: float
    color: str


class MemoryView(NamedTuple):
    """Content of a chart of memory.

    Attributes:
        what: title of the vertical axis.
        seconds: length of the time axis in seconds.
        curves: curves of bytes over seconds in drawing order, from the bottom up.
        model: size of the model in bytes to draw as a line; 0 for none.
        shades: coloured intervals, in order and without overlaps.
        joints: times at which the run was resumed, in seconds.
        greatest: upper end of the vertical axis in bytes; None for the highest value.
    """

    what: str
    seconds: float
    curves: Sequence[Curve]
    model: int = 0
    shades: Sequence[Shade] = ()
    joints: Sequence[float] = ()
    greatest: float | None = None

    @property
    def highest(self) -> float:
        """The highest value or the model's size, in bytes; at least 1."""
        return max(1.0, self.model, *(float(np.nanmax(each.values)) for each in self.curves))


@styled()
def memory_chart(view: MemoryView, width: float) -> Figure:
    """Draw memory over time.

    Args:
        view: content of the chart.
        width: width in pixels.
    """
    made, axes = new_chart(width, _HEIGHT, "time since the run began", view.what)
    for shade in shades_of_parts(view.shades, view.seconds):
        axes.axvspan(shade.begin, shade.end, color=shade.color, alpha=0.16, linewidth=0)
    legend = {draw_curve(axes, curve): curve.label for curve in view.curves}
    if view.model:
        level = axes.axhline(view.model, color=INK, linewidth=1.2, linestyle="--")
        legend[level] = f"model {format_bytes(view.model)}"
    for joint in view.joints:
        axes.axvline(joint, color=MUTED, linewidth=1, linestyle=":")
    top = (view.greatest or view.highest) * 1.06
    axes.set_xlim(0, view.seconds)
    axes.set_ylim(0, top)
    byte_axis(axes.yaxis, top)
    second_axis(axes.xaxis, view.seconds)
    add_legend(made, {artist: text for artist, text in legend.items() if text})
    return made


def shades_of_parts(shades: Sequence[Shade], seconds: float) -> list[Shade]:
    """Return shades that are long enough to be seen, of which there are not too many to draw.

    Args:
        shades: shades in order and without overlaps.
        seconds: length of the time axis in seconds, greater than 0.
    """
    begins = [shade.begin for shade in shades]

    def color_of(part: tuple[float, float]) -> str:
        middle = sum(part) / 2
        index = bisect_right(begins, middle) - 1
        return shades[index].color if index >= 0 and middle < shades[index].end else ""

    parts = pairwise(np.linspace(0, seconds, _PARTS + 1).tolist())
    runs = [(color, list(run)) for color, run in groupby(parts, color_of)]
    return [Shade(run[0][0], run[-1][1], color) for color, run in runs if color]
