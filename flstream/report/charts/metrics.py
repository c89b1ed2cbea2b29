"""Chart of a metric over rounds, of one run or of several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

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

# Curves of at most so many values have a dot at each value.
_MOST_DOTS = 30
_HEIGHT = 220.0


class MetricCurve(NamedTuple):
    """A metric of one run.

    Attributes:
        name: name of the run; empty if there is only one.
        rounds: numbers of the rounds with a value, in rising order.
        values: value of each of these rounds; those that are not finite leave a gap.
        color: colour of the curve, as from ``style.ink``.
        best: number of the round to mark; None for none.
    """

    name: str
    rounds: Sequence[int]
    values: Sequence[float]
    color: str
    best: int | None = None


def metric_chart(name: str, curves: Sequence[MetricCurve], width: float) -> Figure:
    """Draw a metric over rounds: a line for each run, with its last value beside it.

    Args:
        name: name of the metric.
        curves: one or more curves, each with at least one finite value.
        width: width in pixels.
    """
    texts = [_end_text(curve) for curve in curves]
    room = 16 + 7.0 * max(map(len, texts))
    with styled():
        made = figure(width, _HEIGHT)
        axes = add_axes(made, left=58, right=min(room, width * 0.42), top=30)
        for behind, curve in zip(range(len(curves) - 1, -1, -1), curves, strict=True):
            # Lower lines are thicker, so that those of runs with equal values are all visible.
            _draw(axes, curve, LINE_WIDTH + min(behind, 3) * 1.4)
        first = min(1, *(curve.rounds[0] for curve in curves))
        last = max(curve.rounds[-1] for curve in curves)
        pad = max(last - first, 1) * 0.02
        axes.set_xlim(first - pad, last + pad)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1, steps=STEPS))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=STEPS))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
        axes.set_ylim(*axes.get_ylim())
        name_axes(axes, "round", name)
        label_ends(
            axes,
            [
                Label(_last(curve), text, curve.color)
                for curve, text in zip(curves, texts, strict=True)
            ],
        )
    return made


def _draw(axes: Axes, curve: MetricCurve, width: float) -> None:
    few = len(curve.values) <= _MOST_DOTS
    axes.plot(
        curve.rounds,
        [value if math.isfinite(value) else math.nan for value in curve.values],
        color=curve.color,
        linewidth=width,
        marker="o" if few else None,
        markersize=3.5,
    )
    if curve.best is not None and curve.best in curve.rounds:
        axes.plot(
            [curve.best],
            [curve.values[list(curve.rounds).index(curve.best)]],
            color=curve.color,
            marker="o",
            markersize=9,
            markerfacecolor="none",
            markeredgewidth=1.4,
            linestyle="none",
            clip_on=False,
        )


def _last(curve: MetricCurve) -> float:
    return next(value for value in reversed(curve.values) if math.isfinite(value))


def _end_text(curve: MetricCurve) -> str:
    value = format_metric(_last(curve))
    return f"{curve.name} {value}" if curve.name else value
