"""Chart of the memory of processes over time, with the model's size and the phases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flstream.report.charts.style import (
    LINE_WIDTH,
    Label,
    add_axes,
    byte_axis,
    figure,
    ink,
    label_ends,
    name_axes,
    second_axis,
    styled,
)

_HEIGHT = 300.0
_LEFT, _BOTTOM = 66.0, 40.0


class MemoryCurve(NamedTuple):
    """Memory of a process over time, or the range of that of several.

    Attributes:
        label: text at the end of the curve; empty for none.
        values: memory at each step in bytes; NaN where there is no value.
        color: colour of the curve, as from ``style.ink``.
        is_thin: whether the curve is drawn as a thin line, as one of many.
        lows: lower edge of a range at each step in bytes; None for a line.
    """

    label: str
    values: Sequence[float]
    color: str
    is_thin: bool = False
    lows: Sequence[float] | None = None


class Shade(NamedTuple):
    """A coloured interval of time.

    Attributes:
        begin: beginning of the interval in seconds.
        end: end of the interval in seconds.
        color: colour of the phase in the interval, as from ``style.ink``.
    """

    begin: float
    end: float
    color: str


class Mark(NamedTuple):
    """A horizontal line with a label.

    Attributes:
        at: height of the line in bytes.
        label: text at the end of the line.
    """

    at: float
    label: str


class MemoryView(NamedTuple):
    """Content of a chart of memory.

    Attributes:
        what: title of the vertical axis.
        step: seconds from one value of a curve to the next.
        seconds: length of the time axis in seconds.
        curves: curves in drawing order, from the bottom up.
        level: line to compare with, such as the model's size; None for none.
        shades: coloured intervals, in order and without overlaps.
        joints: times at which the run was resumed, in seconds.
        greatest: upper end of the vertical axis in bytes; None for the curves' maximum.
    """

    what: str
    step: float
    seconds: float
    curves: Sequence[MemoryCurve]
    level: Mark | None = None
    shades: Sequence[Shade] = ()
    joints: Sequence[float] = ()
    greatest: float | None = None


def memory_chart(view: MemoryView, size: float, height: float = _HEIGHT) -> Figure:
    """Draw memory over time.

    Args:
        view: content of the chart.
        size: width in pixels.
        height: height in pixels.
    """
    labels = _labels(view)
    room = 16 + 6.6 * max((len(label.text) for label in labels), default=0)
    right = min(room, size * 0.3)
    columns = max(int(size - _LEFT - right), 1)
    with styled():
        made = figure(size, height)
        axes = add_axes(made, left=_LEFT, right=right, top=30, bottom=_BOTTOM)
        for shade in merged(view.shades, view.seconds / columns * 2):
            axes.axvspan(shade.begin, shade.end, color=shade.color, alpha=0.16, linewidth=0)
        for curve in view.curves:
            _draw(axes, curve, view.step, columns)
        if view.level is not None:
            axes.axhline(view.level.at, color=ink("ink"), linewidth=1.2, linestyle=(0, (4, 3)))
        for joint in view.joints:
            axes.axvline(joint, color=ink("muted"), linewidth=1, linestyle=(0, (1, 2)))
        top = (view.greatest or _greatest(view)) * 1.06
        axes.set_xlim(0, view.seconds)
        axes.set_ylim(0, top)
        byte_axis(axes.yaxis, top)
        second_axis(axes.xaxis, view.seconds, most=max(int(columns / 80), 3))
        name_axes(axes, "time since the run began", view.what)
        label_ends(axes, labels)
    return made


def _draw(axes: Axes, curve: MemoryCurve, step: float, columns: int) -> None:
    values = highest_per_column(curve.values, columns)
    # Each value is drawn in the middle of its step.
    times = (np.arange(len(values)) + 0.5) * step * _per_column(len(curve.values), columns)
    if curve.lows is not None:
        lows = -highest_per_column([-low for low in curve.lows], columns)
        axes.fill_between(times, lows, values, color=curve.color, alpha=0.3, linewidth=0)
        return
    axes.plot(
        times,
        values,
        color=curve.color,
        linewidth=1.0 if curve.is_thin else LINE_WIDTH,
        alpha=0.75 if curve.is_thin else 1.0,
        solid_joinstyle="round",
    )


def highest_per_column(values: Sequence[float], columns: int) -> np.ndarray:
    """Reduce values to at most ``columns`` maxima of neighbours; NaN where all of them are NaN."""
    each = _per_column(len(values), columns)
    whole = np.full(-(-len(values) // each) * each, -np.inf)
    whole[: len(values)] = np.nan_to_num(np.asarray(values, float), nan=-np.inf)
    highest: np.ndarray = whole.reshape(-1, each).max(axis=1)
    highest[np.isneginf(highest)] = np.nan
    return highest


def _per_column(count: int, columns: int) -> int:
    return max(-(-count // columns), 1)


def merged(shades: Sequence[Shade], shortest: float) -> list[Shade]:
    """Merge shades so that none is too short to be seen.

    Time is divided into intervals of the shortest length, each with the colour that fills most of
    it. Neighbours of the same colour are joined.

    Args:
        shades: shades in order.
        shortest: minimum length of a shade in seconds, greater than 0.
    """
    filled: dict[int, dict[str, float]] = {}
    for shade in shades:
        for index in range(int(shade.begin / shortest), math.ceil(shade.end / shortest)):
            inside = min(shade.end, (index + 1) * shortest) - max(shade.begin, index * shortest)
            shares = filled.setdefault(index, {})
            shares[shade.color] = shares.get(shade.color, 0.0) + inside
    found: list[Shade] = []
    for index in sorted(filled):
        color = max(filled[index], key=filled[index].__getitem__)
        begin, end = index * shortest, (index + 1) * shortest
        if sum(filled[index].values()) < shortest / 2:
            continue
        if found and found[-1].color == color and found[-1].end == begin:
            found[-1] = found[-1]._replace(end=end)
        else:
            found.append(Shade(begin, end, color))
    return found


def _labels(view: MemoryView) -> list[Label]:
    found = [
        Label(_end(curve.values), curve.label, curve.color)
        for curve in view.curves
        if curve.label and not all(map(math.isnan, curve.values))
    ]
    if view.level is not None:
        found.append(Label(view.level.at, view.level.label, ink("ink")))
    return found


def _end(values: Sequence[float]) -> float:
    """Return the height for a curve's label: its maximum near the end, before a process exits."""
    known = [value for value in values if not math.isnan(value)]
    return max(known[-max(len(known) // 20, 1) :])


def _greatest(view: MemoryView) -> float:
    highest = [
        max((value for value in curve.values if not math.isnan(value)), default=0.0)
        for curve in view.curves
    ]
    return max([1.0, *highest, view.level.at if view.level else 0.0])
