"""Chart of what sites logged under one key: a line for each, or the range and mean of many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from flstream.report.charts.style import (
    LINE_WIDTH,
    STEPS,
    Label,
    add_axes,
    figure,
    label_ends,
    name_axes,
    styled,
)
from flstream.report.text import format_metric

_HEIGHT = 220.0
# Curves of at most so many values have a dot at each value.
_MOST_DOTS = 30
# A range has no more places than can be told apart.
_MOST_PLACES = 400


class LoggedLine(NamedTuple):
    """A line of the chart, or a range.

    Attributes:
        label: text at the end of the line, before its last value; None for no label.
        places: steps or rounds, in the order in which the values came.
        values: one for each place; NaN leaves a gap.
        color: colour of the line, as from ``style.ink``.
        is_thin: whether it is drawn as a thin line, as one of many.
        lows: lower edge of a range, whose upper edge the values are; None for a line.
    """

    label: str | None
    places: Sequence[float]
    values: Sequence[float]
    color: str
    is_thin: bool = False
    lows: Sequence[float] | None = None


class Spread(NamedTuple):
    """Lowest, mean and highest of many curves at each place."""

    places: np.ndarray
    lows: np.ndarray
    means: np.ndarray
    highs: np.ndarray


def spread_of(curves: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Spread:
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


def logged_chart(name: str, unit: str, lines: Sequence[LoggedLine], width: float) -> Figure:
    """Draw what was logged under one key.

    Args:
        name: name of the values.
        unit: title of the horizontal axis: step or round.
        lines: lines in drawing order, from the bottom up; one value at least is finite.
        width: width in pixels.
    """
    labels = [
        Label(last, f"{each.label} {format_metric(last)}".strip(), each.color)
        for each in lines
        if each.label is not None and (last := _last(each.values)) is not None
    ]
    room = 16 + 7.0 * max((len(label.text) for label in labels), default=0)
    with styled():
        made = figure(width, _HEIGHT)
        axes = add_axes(made, left=58, right=min(room, width * 0.42), top=30)
        for each in lines:
            _draw(axes, each)
        places = [place for each in lines for place in (min(each.places), max(each.places))]
        pad = max(max(places) - min(places), 1) * 0.02
        axes.set_xlim(min(places) - pad, max(places) + pad)
        # Long numbers of steps need more room than those of rounds.
        most_steps = 6 if max(map(abs, places)) < 1000 else 4
        for axis, most in ((axes.xaxis, most_steps), (axes.yaxis, 5)):
            axis.set_major_locator(MaxNLocator(most, integer=axis is axes.xaxis, steps=STEPS))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
        axes.set_ylim(*axes.get_ylim())
        name_axes(axes, unit, name)
        label_ends(axes, labels)
    return made


def _draw(axes: Axes, line: LoggedLine) -> None:
    if line.lows is not None:
        axes.fill_between(
            line.places, line.lows, line.values, color=line.color, alpha=0.25, linewidth=0
        )
        return
    few = len(line.values) <= _MOST_DOTS and not line.is_thin
    axes.plot(
        line.places,
        line.values,
        color=line.color,
        linewidth=1.0 if line.is_thin else LINE_WIDTH,
        alpha=0.75 if line.is_thin else 1.0,
        marker="o" if few else None,
        markersize=3.5,
    )


def _last(values: Sequence[float]) -> float | None:
    return next((value for value in reversed(values) if math.isfinite(value)), None)
