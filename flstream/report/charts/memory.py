"""Memory of processes over time, with the model's size as a line and the phases shaded."""

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
    """Memory of one process, or the range of that of several.

    Attributes:
        label: written at its end; empty for none.
        values: bytes at each step; NaN where there is nothing to show.
        color: as from ``style.ink``.
        is_thin: whether it is one of many, or the background to others.
        lows: the lower edge of a range; None for a line.
    """

    label: str
    values: Sequence[float]
    color: str
    is_thin: bool = False
    lows: Sequence[float] | None = None


class Shade(NamedTuple):
    """A stretch of time in the colour of what went on then; in seconds."""

    begin: float
    end: float
    color: str


class Mark(NamedTuple):
    """A line across: at a time in seconds, or at a height in bytes."""

    at: float
    label: str


class MemoryView(NamedTuple):
    """What a chart of memory shows.

    Attributes:
        what: is on the vertical axis.
        step: seconds from one value of a curve to the next.
        seconds: the length of the time axis.
        curves: the first ones are drawn below the others.
        level: bytes to compare with, such as the model's size; None for none.
        shades: in order, none over another.
        joints: times at which the run was resumed.
        greatest: bytes that the axis has room for; None is as many as the curves take.
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
    """Draw memory over time, so many pixels wide."""
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
    # What is at a step was measured within it.
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
    """No more values than columns, each the highest of those it stands for; NaN if all are."""
    each = _per_column(len(values), columns)
    whole = np.full(-(-len(values) // each) * each, -np.inf)
    whole[: len(values)] = np.nan_to_num(np.asarray(values, float), nan=-np.inf)
    highest: np.ndarray = whole.reshape(-1, each).max(axis=1)
    highest[np.isneginf(highest)] = np.nan
    return highest


def _per_column(count: int, columns: int) -> int:
    return max(-(-count // columns), 1)


def merged(shades: Sequence[Shade], shortest: float) -> list[Shade]:
    """Shades of which none is too short to be seen.

    Time is cut into stretches of the shortest length; where several shades meet in one, it has the
    colour of what filled most of it. Neighbours of a colour become one.

    Args:
        shades: in order.
        shortest: in seconds, more than 0.
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
    """Where a curve stands in the end: not where it falls to in the moment it is over."""
    known = [value for value in values if not math.isnan(value)]
    return max(known[-max(len(known) // 20, 1) :])


def _greatest(view: MemoryView) -> float:
    highest = [
        max((value for value in curve.values if not math.isnan(value)), default=0.0)
        for curve in view.curves
    ]
    return max([1.0, *highest, view.level.at if view.level else 0.0])
