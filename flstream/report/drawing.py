"""Charts as inline SVG, which take their colours from the page's style sheet.

A chart is drawn once, 420 units wide, and scales with its figure. Curves are thinned to what that
width can show, so that the size of a page does not grow with a run. The numbers of a path are the
values themselves, which a transform puts into the chart: ``chart.js`` shows them on hover.
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
SERIES = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, VIOLET, INK)
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
    name: str | None = None  # on hover; empty for none, None for the label


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

    Axes of bytes and seconds begin at 0, and end at ``top`` if that is given; those of metrics
    begin at the lowest value. Marks are places of dotted vertical lines.
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
    begin = 0.0 if x in ("seconds", "bytes") else float(places.min())
    frame = _Frame((begin, float(places.max())), x, (min(low, high), high), y)
    parts = [frame.axes(x_title)]
    for mark in marks:
        bottom = _HEIGHT - _BOTTOM
        parts.append(f'<path class="mark" d="M{frame.x(mark):.1f} {_TOP:.0f}V{bottom:.0f}"/>')
    only = title if len(curves) == 1 else ""
    paths = "".join(_path(frame, curve, only) for curve in curves)
    parts.append(f'<g transform="{frame.transform}">{paths}</g>')
    parts += [_dots(frame, curve) for curve in curves]
    legend = [
        (_legend(curve, y), curve.color)
        for curve in curves
        if curve.label or (len(curves) == 1 and y == "metric")
    ]
    label = printable(title)
    svg = (
        f'<svg class="chart" role="img" aria-label="{escape(label)}" '
        f'data-x="{x_title.partition(",")[0]}" data-x-unit="{frame.x_unit}" '
        f'data-y="{frame.unit}" '
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
        highest = max(map(abs, ys))
        if ys[1] - ys[0] <= 1e-9 * max(highest, 1e-100):  # what rounding alone tells apart
            apart = highest / 20 or 1.0
            ys = ys[0] - (apart if y == "metric" else 0.0), ys[1] + apart
        if xs[0] == xs[1]:
            xs = xs[0] - 0.5, xs[1] + 0.5
        self._ys = ticks(*ys, y, 6 if y == "metric" else 4)
        self._xs = ticks(*xs, x, 3 if x == "bytes" else 5)
        self._low, self._high = min(ys[0], self._ys[0][0]), max(ys[1], self._ys[-1][0])
        self._left = max(len(text) for _, text in self._ys) * _LETTER + 8
        self._begin, self._end = xs
        # Those of a path's numbers.
        self._size, self.unit = _size_of(self._high, y)
        self._x_size, self.x_unit = _size_of(self._end, x)
        # Enough for neighbouring pixels to differ, and for a table's digits.
        steps = max(abs(self._low), abs(self._high)) / (self._high - self._low)
        self._digits = min(4 + math.ceil(math.log10(steps)), 15)

    @property
    def transform(self) -> str:
        """Transform that puts points of paths into the chart."""
        right = self.x(self._begin + self._x_size) - self.x(self._begin)
        down = self.y(0) - self.y(self._size)
        return f"matrix({right:.9g} 0 0 {-down:.9g} {self.x(0):.9g} {self.y(0):.9g})"

    def points(self, places: np.ndarray, values: np.ndarray) -> list[str]:
        """Return points of a path as text, in the units of the axes."""
        return [
            f"{place / self._x_size:.7g} {value / self._size:.{self._digits}g}"
            for place, value in zip(places, values, strict=True)
        ]

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


def _size_of(high: float, unit: Unit) -> tuple[float, str]:
    """Return the size of an axis' unit and its name, by the highest value."""
    if unit != "bytes":
        return 1.0, "s" if unit == "seconds" else ""
    power = min(int(math.log2(max(high, 1.0)) // 10), 4)
    return 1024.0**power, ("B", "KiB", "MiB", "GiB", "TiB")[power]


def ticks(low: float, high: float, unit: Unit, count: int) -> list[tuple[float, str]]:
    """Return the labelled values of an axis, with labels.

    Those of bytes and seconds begin and end the axis, the others lie within.
    """
    span = (high - low) or abs(high) or 1.0
    size, name = _time_unit(high) if unit == "seconds" else (1.0, "")
    if unit == "bytes":
        step = 2.0 ** math.ceil(math.log2(max(span, 5) / (count + 1)))
    else:
        raw = span / size / count
        power = 10.0 ** math.floor(math.log10(raw))
        step = size * power * next(n for n in (1, 2, 5, 10) if n * power >= raw * 0.999)
    if unit in ("count", "metric"):
        step = max(step, 1.0) if unit == "count" else step
        begin, end = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
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


def _path(frame: _Frame, curve: Curve, only: str) -> str:
    """Return the path of a curve, with its name; the chart's only curve may have the title's."""
    places, highs = np.asarray(curve.places, float), np.asarray(curve.values, float)
    lows = highs if curve.lows is None else np.asarray(curve.lows, float)
    known = np.isfinite(highs) & np.isfinite(lows)
    if not known.any():
        return ""
    name = printable(curve.label or only if curve.name is None else curve.name)
    if curve.lows is not None:
        keep = _thinned(lows[known], highs[known])
        places, lows, highs = places[known][keep], lows[known][keep], highs[known][keep]
        points = [*frame.points(places, highs), *reversed(frame.points(places, lows))]
        kind, style = "area", f"fill:{curve.color}"
        style += f";fill-opacity:{curve.opacity:g}" if curve.opacity < 1 else ""
        path = f"M{'L'.join(points)}z"
    else:
        kind, path = "line", ""
        edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(int)))
        for begin, end in edges.reshape(-1, 2):
            keep = begin + _thinned(highs[begin:end], highs[begin:end])
            path += "M" + "L".join(frame.points(places[keep], highs[keep]))
        style = f"stroke:{curve.color};stroke-width:{curve.width:.1f}"
        style += ";stroke-dasharray:5 4" if curve.is_dashed else ""
    head = f' data-name="{escape(name)}"' if name else ""
    return f'<path class="{kind}"{head} d="{path}" style="{style}"/>'


def _dots(frame: _Frame, curve: Curve) -> str:
    """Return the dots of a line with few points, and the circle of its best one."""
    has_dots = len(curve.values) <= _MOST_DOTS and curve.width >= 1.5 and not curve.is_dashed
    dot = f'r="2.2" style="fill:{curve.color}"'
    ring = f'r="5" style="fill:none;stroke:{curve.color};stroke-width:1.4"'
    return "".join(
        f'<circle cx="{frame.x(place):.1f}" cy="{frame.y(value):.1f}" {look}/>'
        for place, value in zip(curve.places, curve.values, strict=True)
        for look, is_shown in ((dot, has_dots), (ring, place == curve.best))
        if is_shown and math.isfinite(value) and curve.lows is None
    )


def _thinned(lows: np.ndarray, highs: np.ndarray) -> np.ndarray:
    """Return the indices of points to draw; of many, each pixel's lowest and highest values."""
    if len(highs) <= 2 * _MOST_POINTS:
        return np.arange(len(highs))
    keep = {0, len(highs) - 1}
    for begin, end in pairwise(np.linspace(0, len(highs), _MOST_POINTS + 1).astype(int)):
        keep |= {begin + int(lows[begin:end].argmin()), begin + int(highs[begin:end].argmax())}
    return np.array(sorted(keep))
