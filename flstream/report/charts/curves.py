"""Chart of curves over rounds, steps or time: a line for each, or the range of many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flstream.report.charts.style import LINE_WIDTH, count_axis, new_chart, styled
from flstream.report.text import format_metric

_HEIGHT, _ENTRY_HEIGHT = 200.0, 18.0
# Curves of at most so many values have a dot at each value.
_MOST_DOTS = 30
# A range has no more places than can be told apart.
_MOST_PLACES = 400

Values = Sequence[float] | np.ndarray


class Curve(NamedTuple):
    """A line of a chart, or a range.

    Attributes:
        label: name in the legend; empty for none.
        places: rounds, steps or seconds, in order.
        values: one for each place; those that are not finite leave a gap.
        color: hexadecimal colour.
        width: width of the line in pixels.
        lows: lower edge of a range, whose upper edge the values are; None for a line.
        best: place to mark with a circle; None for none.
    """

    label: str
    places: Values
    values: Values
    color: str
    width: float = LINE_WIDTH
    lows: Values | None = None
    best: float | None = None


class Spread(NamedTuple):
    """Lowest, mean and highest of many curves at each place."""

    places: np.ndarray
    lows: np.ndarray
    means: np.ndarray
    highs: np.ndarray


def spread_of(curves: Sequence[tuple[Values, Values]]) -> Spread:
    """Return the range of many curves over their places; neighbours share one if there are many.

    Args:
        curves: places and values of each; at least one value is finite.
    """
    places = np.concatenate([np.asarray(each[0], float) for each in curves])
    values = np.concatenate([np.asarray(each[1], float) for each in curves])
    places, values = places[np.isfinite(values)], values[np.isfinite(values)]
    distinct = np.unique(places)
    if len(distinct) > _MOST_PLACES:
        width = (distinct[-1] - distinct[0]) / _MOST_PLACES
        places = distinct[0] + np.floor((places - distinct[0]) / width) * width
    order = np.argsort(places, kind="stable")
    found, begins = np.unique(places[order], return_index=True)
    sums = np.add.reduceat(values[order], begins)
    counts = np.diff([*begins, len(order)])
    lows, highs = (each.reduceat(values[order], begins) for each in (np.minimum, np.maximum))
    return Spread(found, lows, sums / counts, highs)


@styled()
def curve_chart(name: str, unit: str, curves: Sequence[Curve], width: float) -> Figure:
    """Draw curves, with the last value of each that has a label or is alone.

    Args:
        name: name of the values.
        unit: title of the horizontal axis: step or round.
        curves: curves in drawing order, from the bottom up, each with at least one finite value.
        width: width in pixels.
    """
    made, axes = new_chart(width, _HEIGHT, unit, name)
    count_axis(axes.xaxis)
    legend = {}
    for curve in curves:
        artist = draw_curve(axes, curve)
        points = zip(curve.places, curve.values, strict=True)
        place, last = [point for point in points if math.isfinite(point[1])][-1]
        if curve.label:
            legend[artist] = f"{curve.label} {format_metric(last)}"
        elif len(curves) == 1:
            text, offset = format_metric(last), (8, 0)
            axes.annotate(text, (place, last), offset, textcoords="offset points", va="center")
    add_legend(made, legend)
    return made


def draw_curve(axes: Axes, curve: Curve) -> Artist:
    """Draw a line or a range, and return it."""
    if curve.lows is not None:
        return axes.fill_between(
            curve.places, curve.lows, curve.values, color=curve.color, alpha=0.25, linewidth=0
        )
    is_thin = curve.width < LINE_WIDTH
    [line] = axes.plot(
        curve.places,
        np.where(np.isfinite(curve.values), curve.values, math.nan),
        color=curve.color,
        linewidth=curve.width,
        alpha=0.75 if is_thin else 1.0,
        marker="o" if len(curve.values) <= _MOST_DOTS and not is_thin else None,
    )
    if curve.best is not None and curve.best in curve.places:
        value = curve.values[list(curve.places).index(curve.best)]
        axes.scatter(curve.best, value, s=80, facecolors="none", edgecolors=curve.color)
    return line


def add_legend(made: Figure, texts: Mapping[Artist, str]) -> None:
    """Add a legend below a chart, which gets higher by as much.

    Args:
        made: the figure.
        texts: text of each line or range.
    """
    if not texts:
        return
    for columns in range(min(len(texts), 5), 0, -1):
        legend = made.legend([*texts], [*texts.values()], loc="outside lower left", ncols=columns)
        if legend.get_window_extent().width < made.bbox.width or columns == 1:
            break
        legend.remove()
    rows = math.ceil(len(texts) / columns)
    made.set_figheight(made.get_figheight() + rows * _ENTRY_HEIGHT / made.dpi)
    for line in legend.get_lines():
        line.set(linewidth=2, alpha=1)
