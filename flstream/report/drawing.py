"""Charts as inline SVG, which take their colours from the page's style sheet.

A chart is drawn once, 420 units wide, and scales with its figure. Curves are thinned to what that
width can show, so that the size of a page does not grow with a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from flstream.report.text import format_metric
from flstream.text import printable
from flstream.units import format_bytes

Values = Sequence[float] | np.ndarray
Unit = Literal["metric", "bytes", "seconds", "count"]

INK, BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, VIOLET = (
    f"var(--{name})"
    for name in ("ink", "blue", "vermilion", "green", "pink", "orange", "sky", "violet")
)
SERIES = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, VIOLET)
"""Colours of compared runs, sites or keys, in order: those of Okabe and Ito (2008)."""

_WIDTH, _HEIGHT, _TOP, _BOTTOM, _RIGHT = 420.0, 210.0, 12.0, 24.0, 12.0
_LETTER = 7.4  # at most, of the labels
_MOST_POINTS, _MOST_DOTS = 400, 30


class Curve(NamedTuple):
    """Line of a chart; with ``lows``, the band between two lines."""

    label: str  # in the legend; empty for none
    places: Values  # rounds, steps or seconds, in order
    values: Values  # one for each place; those that are not finite leave a gap
    color: str  # as CSS names it
    width: float = 1.8  # of the line, in pixels
    lows: Values | None = None  # lower edge of a band, whose upper edge the values are
    opacity: float = 0.22  # of a band, from 0 to 1
    best: float | None = None  # place to mark with a circle
    is_dashed: bool = False


class Chart(NamedTuple):
    """A chart of a page."""

    title: str
    svg: str
    legend: Sequence[tuple[str, str]]  # labels with their colours


def curve_chart(
    title: str,
    curves: Sequence[Curve],
    x: Unit,
    y: Unit,
    *,
    marks: Sequence[float] = (),
    top: float | None = None,
    x_title: str = "",
) -> Chart:
    """Draw curves, from the bottom up.

    Axes of bytes and seconds begin at 0, and end at ``top`` if that is given. Marks are places of
    dotted vertical lines.
    """
    places = np.concatenate([np.asarray(curve.places, float) for curve in curves])
    edges = [curve.values for curve in curves] + [c.lows for c in curves if c.lows is not None]
    values = np.concatenate([np.asarray(edge, float) for edge in edges])
    values = values[np.isfinite(values)]
    low = float(values.min(initial=math.inf)) if y == "metric" else 0.0
    high = top or float(values.max(initial=-math.inf))
    if not math.isfinite(high):
        low, high = 0.0, 1.0
    high = max(high, 1.0) if y == "bytes" else high
    begin = 0.0 if x == "seconds" else float(places.min())
    frame = _Frame((begin, float(places.max())), x, (min(low, high), high), y)
    parts = [frame.axes(x_title)]
    for mark in marks:
        bottom = _HEIGHT - _BOTTOM
        parts.append(f'<path class="mark" d="M{frame.x(mark):.1f} {_TOP:.0f}V{bottom:.0f}"/>')
    parts += [_draw(frame, curve) for curve in curves]
    legend = [
        (_legend(curve, y), curve.color)
        for curve in curves
        if curve.label or (len(curves) == 1 and y == "metric")
    ]
    label = printable(title)
    svg = (
        f'<svg class="chart" role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}">{"".join(parts)}</svg>'
    )
    return Chart(label, svg, legend)


def _legend(curve: Curve, y: Unit) -> str:
    text = printable(curve.label)
    if y != "metric" or curve.lows is not None:
        return text
    last = next((value for value in reversed(list(curve.values)) if math.isfinite(value)), None)
    return f"{text} {format_metric(last)}".strip()


def band_of(curves: Sequence[tuple[Values, Values]]) -> tuple[np.ndarray, ...]:
    """Return places, means, lowest and highest values, and deviations of many curves."""
    places = np.concatenate([np.asarray(place, float) for place, _ in curves])
    values = np.concatenate([np.asarray(value, float) for _, value in curves])
    places, values = places[np.isfinite(values)], values[np.isfinite(values)]
    distinct = np.unique(places)
    if len(distinct) > _MOST_POINTS:
        width = (distinct[-1] - distinct[0]) / _MOST_POINTS
        places = distinct[0] + np.floor((places - distinct[0]) / width) * width
    order = np.argsort(places, kind="stable")
    distinct, begins = np.unique(places[order], return_index=True)
    counts = np.diff([*begins, len(order)])
    values = values[order]
    means = np.add.reduceat(values, begins) / counts
    squares = np.add.reduceat((values - np.repeat(means, counts)) ** 2, begins)
    deviations = np.sqrt(squares / np.maximum(counts - 1, 1))
    lows, highs = np.minimum.reduceat(values, begins), np.maximum.reduceat(values, begins)
    return distinct, means, lows, highs, deviations


class _Frame:
    """Axes of a chart: the ends and the unit of each."""

    def __init__(self, xs: tuple[float, float], x: Unit, ys: tuple[float, float], y: Unit) -> None:
        if ys[0] == ys[1]:
            apart = abs(ys[0]) / 2 or 1.0
            ys = ys[0] - (apart if y == "metric" else 0.0), ys[1] + apart
        if xs[0] == xs[1]:
            xs = xs[0] - 0.5, xs[1] + 0.5
        self._ys, self._xs = _ticks(*ys, y, 4), _ticks(*xs, x, 5)
        self._low, self._high = min(ys[0], self._ys[0][0]), max(ys[1], self._ys[-1][0])
        self._left = max(len(text) for _, text in self._ys) * _LETTER + 8
        self._begin, self._end = xs

    def x(self, place: float) -> float:
        room = _WIDTH - self._left - _RIGHT
        return self._left + (place - self._begin) / (self._end - self._begin) * room

    def y(self, value: float) -> float:
        depth = _HEIGHT - _TOP - _BOTTOM
        return _TOP + (self._high - value) / (self._high - self._low) * depth

    def axes(self, title: str) -> str:
        parts, base = [], _HEIGHT - 6
        for value, text in self._ys:
            y = self.y(value)
            parts.append(
                f'<path class="grid" d="M{self._left:.0f} {y:.1f}H{_WIDTH - _RIGHT:.0f}"/>'
                f'<text x="{self._left - 6:.0f}" y="{y + 4:.1f}" class="end">{text}</text>'
            )
        edge = _WIDTH - len(title) * _LETTER - 16
        for place, text in self._xs:
            x = self.x(place)
            if self._begin <= place <= self._end and x + len(text) * _LETTER / 2 < edge:
                parts.append(f'<text x="{x:.1f}" y="{base:.0f}" class="mid">{text}</text>')
        if title:
            parts.append(f'<text x="{_WIDTH - 4:.0f}" y="{base:.0f}" class="end">{title}</text>')
        return "".join(parts)


def _ticks(low: float, high: float, unit: Unit, count: int) -> list[tuple[float, str]]:
    """Return the labelled values of an axis, the highest at its end, with labels."""
    span = (high - low) or abs(high) or 1.0
    size, name = _time_unit(high) if unit == "seconds" else (1.0, "")
    if unit == "bytes":
        step = 2.0 ** math.ceil(math.log2(max(span, 5) / (count + 1)))
    else:
        raw = span / size / count
        power = 10.0 ** math.floor(math.log10(raw))
        step = size * power * next(n for n in (1, 2, 5, 10) if n * power >= raw * 0.999)
    if unit == "count":
        step = max(step, 1.0)
        begin, end = math.ceil(low / step), math.floor(high / step)
    else:
        begin, end = math.floor(low / step), math.ceil(high / step - 1e-9)

    def label(value: float) -> str:
        match unit:
            case "bytes":
                return format_bytes(round(value))
            case "seconds":
                return f"{value / size:g} {name}"
            case "count":
                return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:g}"
        digits = max(-math.floor(math.log10(step)), 0)
        return f"{value:.{digits}f}" if 1e-4 < step < 1e5 else f"{value:g}"

    values = [step * number for number in range(begin, max(end, begin) + 1)]
    return [(value, label(value)) for value in values]


def _time_unit(seconds: float) -> tuple[float, str]:
    units = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))
    return next((unit for unit in units if seconds >= 2 * unit[0]), (1.0, "s"))


def _draw(frame: _Frame, curve: Curve) -> str:
    places, values = np.asarray(curve.places, float), np.asarray(curve.values, float)
    known = np.isfinite(values)
    if curve.lows is not None:
        lows = np.asarray(curve.lows, float)
        known &= np.isfinite(lows)
        upper = _points(frame, places[known], values[known])
        lower = _points(frame, places[known], lows[known])
        area, style = "L".join([*upper, *reversed(lower)]), f"fill:{curve.color}"
        style += f";fill-opacity:{curve.opacity:g}" if curve.opacity < 1 else ""
        return f'<path d="M{area}z" style="{style}"/>' if upper else ""
    path = []
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(int)))
    for begin, end in edges.reshape(-1, 2):
        path.append("M" + "L".join(_points(frame, places[begin:end], values[begin:end])))
    style = f"stroke:{curve.color};stroke-width:{curve.width:.1f}"
    style += ";stroke-dasharray:5 4" if curve.is_dashed else ""
    parts = [f'<path class="line" d="{"".join(path)}" style="{style}"/>']
    has_dots = len(values) <= _MOST_DOTS and curve.width >= 1.5 and not curve.is_dashed
    for place, value in zip(places[known], values[known], strict=True):
        center = f'cx="{frame.x(place):.1f}" cy="{frame.y(value):.1f}"'
        if has_dots:
            parts.append(f'<circle {center} r="2.2" style="fill:{curve.color}"/>')
        if place == curve.best:
            style = f"fill:none;stroke:{curve.color};stroke-width:1.4"
            parts.append(f'<circle {center} r="5" style="{style}"/>')
    return "".join(parts)


def _points(frame: _Frame, places: np.ndarray, values: np.ndarray) -> list[str]:
    """Return points as text; of many, each pixel's lowest and highest values."""
    if len(places) > 2 * _MOST_POINTS:
        cuts = np.linspace(0, len(places), _MOST_POINTS + 1).astype(int)
        keep = {0, len(places) - 1}
        for begin, end in pairwise(cuts):
            part = values[begin:end]
            keep |= {begin + int(part.argmin()), begin + int(part.argmax())}
        indices = sorted(keep)
        places, values = places[indices], values[indices]
    points = zip(map(frame.x, places), map(frame.y, values), strict=True)
    return [f"{x:.1f} {y:.1f}" for x, y in points]
