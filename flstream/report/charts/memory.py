"""Chart of the memory of processes over time, with the model's size and the phases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from flstream.report.charts.curves import Curve, add_legend, draw_curve
from flstream.report.charts.style import INK, MUTED, byte_axis, new_chart, second_axis, styled
from flstream.units import format_bytes

_HEIGHT = 260.0
# Time is divided into so many parts for the colours of phases.
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
    top = (view.greatest or view.highest) * 1.06
    extent = (0, view.seconds, 0, top)
    for color in dict.fromkeys(shade.color for shade in view.shades):
        shares = shares_of_parts([s for s in view.shades if s.color == color], view.seconds)
        # Images of a line of pixels, since thousands of shades would make a page slow.
        pixels = [to_rgba(color, 0.16 * share) for share in np.clip(shares, 0, 1)]
        axes.imshow([pixels], extent=extent, aspect="auto", interpolation="none", zorder=0)
    legend = {draw_curve(axes, curve): curve.label for curve in view.curves}
    if view.model:
        level = axes.axhline(view.model, color=INK, linewidth=1.2, linestyle="--")
        legend[level] = f"model {format_bytes(view.model)}"
    for joint in view.joints:
        axes.axvline(joint, color=MUTED, linewidth=1, linestyle=":")
    axes.set_xlim(0, view.seconds)
    axes.set_ylim(0, top)
    byte_axis(axes.yaxis, top)
    second_axis(axes.xaxis, view.seconds)
    add_legend(made, {artist: text for artist, text in legend.items() if text})
    return made


def shares_of_parts(shades: Sequence[Shade], seconds: float) -> np.ndarray:
    """Return how much of each of many equal parts of time is within shades, from 0 to 1.

    Args:
        shades: shades in order and without overlaps, at least one.
        seconds: length of the time axis in seconds, greater than 0.
    """
    times = [time for shade in shades for time in (shade.begin, shade.end)]
    filled = np.cumsum([part for shade in shades for part in (0, shade.end - shade.begin)])
    edges = np.linspace(0, seconds, _PARTS + 1)
    shares: np.ndarray = np.diff(np.interp(edges, times, filled)) * _PARTS / seconds
    return shares
