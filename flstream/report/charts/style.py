"""The common style of all charts: colours, type, axes with units, and labels beside curves.

Importing this module imports matplotlib, so it must be imported where charts are drawn, not at the
top of commands. Figures are made and written inside ``styled()``. They are laid out in pixels of
the page, without matplotlib's layout engines: the result is the same on every machine.

Figures are drawn in the colours of the light page. In a page these are replaced by variables of the
style sheet, so that the same chart serves light and dark pages (see ``charts.svg``).
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from flstream.units import format_bytes

# Suppresses warnings of fonts and of cache folders, which would appear among a run's output.
logging.getLogger("matplotlib").setLevel(logging.ERROR)


class Color(NamedTuple):
    """A named colour.

    Attributes:
        name: name of the colour, also of its variable in the style sheet.
        light: hexadecimal colour on a light page.
        dark: hexadecimal colour on a dark page.
    """

    name: str
    light: str
    dark: str


COLORS = {
    color.name: color
    for color in (
        Color("ink", "#1d232b", "#e8ebef"),
        Color("muted", "#5d6773", "#9aa5b1"),
        Color("faint", "#a3acb6", "#65707c"),
        Color("grid", "#e4e7eb", "#2d343d"),
        Color("paper", "#fefefe", "#14181d"),
        # After Okabe and Ito (2008): distinguishable by the colour-blind too.
        Color("blue", "#0072b2", "#4fa8e0"),
        Color("vermilion", "#d55e00", "#f58a42"),
        Color("green", "#009e73", "#3cc79c"),
        Color("pink", "#c2649a", "#dd8fbb"),
        Color("orange", "#e69f00", "#f0b840"),
        Color("sky", "#56b4e9", "#8dd0f7"),
        Color("violet", "#6650a8", "#a997e8"),
    )
}
"""All colours of charts, by name."""

SERIES = ("blue", "vermilion", "green", "pink", "orange", "sky", "violet")
"""Names of the colours for compared runs or modes, in order."""

TEXT_SIZE, SMALL_SIZE = 12.0, 11.0
LINE_WIDTH = 1.8
STEPS = (1, 2, 5, 10)
"""Multiples of a power of ten for the ticks of axes of plain numbers."""

# Converts pixels of a page to matplotlib's inches.
_DPI = 72
# Matplotlib's own defaults come first, so that nothing depends on a user's settings. Its backend is
# left out, since setting it would make matplotlib look for a display.
_RC: dict[str, Any] = {
    **{name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"},
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": TEXT_SIZE,
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar in a name is not markup
}


@contextmanager
def styled(more: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Apply this style instead of the user's matplotlib settings, until the end of the block.

    Args:
        more: additional settings, by matplotlib's names.
    """
    settings: Any = {**_RC, **(more or {})}
    with warnings.catch_warnings(), matplotlib.rc_context(settings):
        # A glyph that the font lacks only makes the measured width wrong by a few pixels.
        warnings.filterwarnings("ignore", "Glyph ")
        yield


def ink(name: str) -> str:
    """Return the hexadecimal value of a named colour for drawing."""
    return COLORS[name].light


def series_color(index: int) -> str:
    """Return the hexadecimal colour of a compared run or mode, by its index."""
    return ink(SERIES[index % len(SERIES)])


def figure(width: float, height: float) -> Figure:
    """Create an empty figure with the page's background.

    Args:
        width: width in pixels.
        height: height in pixels.
    """
    made = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
    made.patch.set_facecolor(ink("paper"))
    return made


def add_axes(
    made: Figure, *, left: float, right: float, top: float = 14, bottom: float = 40
) -> Axes:
    """Add axes with horizontal grid lines to a figure.

    Args:
        made: the figure.
        left: left margin in pixels.
        right: right margin in pixels.
        top: top margin in pixels.
        bottom: bottom margin in pixels.
    """
    width, height = made.get_figwidth() * _DPI, made.get_figheight() * _DPI
    box = (left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height)
    axes = made.add_axes(box)
    axes.patch.set_visible(False)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(ink("faint"))
    axes.grid(visible=True, axis="y", color=ink("grid"), linewidth=1)
    axes.set_axisbelow(True)
    # No tick marks: the labels and the grid lines suffice.
    axes.tick_params(left=False, bottom=False, labelcolor=ink("muted"), labelsize=SMALL_SIZE, pad=6)
    return axes


def name_axes(axes: Axes, x: str, y: str) -> None:
    """Write the titles of axes: ``x`` below at the right, ``y`` above at the left."""
    text: Any = {"color": ink("muted"), "fontsize": SMALL_SIZE}
    axes.set_xlabel(x, loc="right", labelpad=4, **text)
    # Horizontal text above the axis is easier to read than text along it.
    axes.set_ylabel(y, rotation=0, horizontalalignment="left", verticalalignment="bottom", **text)
    axes.yaxis.set_label_coords(-_left_share(axes), 1.04)


def byte_axis(axis: Axis, greatest: float, most: int = 5) -> None:
    """Label an axis from 0 to ``greatest`` in bytes, at round numbers of KiB, MiB or GiB."""
    _fix(axis, byte_ticks(greatest, most), lambda value: format_bytes(round(value)))


def second_axis(axis: Axis, greatest: float, most: int = 6) -> None:
    """Label an axis from 0 to ``greatest`` in seconds, minutes or hours."""
    _fix(axis, second_ticks(greatest, most), format_second_tick)


def byte_ticks(greatest: float, most: int = 5) -> list[float]:
    """Return values from 0 to ``greatest`` at steps of a power of two, at most ``most`` steps."""
    step = 2.0 ** max(math.ceil(math.log2(max(greatest, 1) / most)), 0)
    return _steps(step, greatest)


_SECOND_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200)
_DAY = 86400


def second_ticks(greatest: float, most: int = 6) -> list[float]:
    """Return values from 0 to ``greatest`` at round steps of time, at most ``most`` steps."""
    least = max(greatest, 1e-6) / most
    if least <= 1:
        power = 10.0 ** math.floor(math.log10(least))
        step = next(power * each for each in (1, 2, 5, 10) if power * each >= least * (1 - 1e-9))
    else:
        days = _DAY * 2.0 ** max(math.ceil(math.log2(least / _DAY)), 0)
        step = next((float(each) for each in _SECOND_STEPS if each >= least), days)
    return _steps(step, greatest)


def format_second_tick(seconds: float) -> str:
    """Format a duration for an axis: ``0.5 s``, ``20 s``, ``1 min 30 s``, ``1 h 30 min``."""
    if seconds < 60:
        return f"{seconds:.6g} s"
    parts = []
    rest = round(seconds)
    for size, unit in ((_DAY, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


class Label(NamedTuple):
    """A text beside the end of a curve.

    Attributes:
        y: height of the curve's end, in the data's units.
        text: the text.
        color: colour of the text, as from :func:`ink`.
    """

    y: float
    text: str
    color: str


def label_ends(axes: Axes, labels: Sequence[Label], *, gap: float = 8) -> None:
    """Write labels at the right of axes, at the height of their curves, without overlaps.

    The limits of the axes must have been set before.

    Args:
        axes: axes with a right margin that is wide enough for the texts.
        labels: labels in any order.
        gap: pixels between the axes and the texts.
    """
    height = axes.get_window_extent().height
    width = axes.get_window_extent().width
    spacing = (SMALL_SIZE + 3) / height
    wanted = sorted(labels, key=lambda label: label.y)
    low, high = axes.get_ylim()
    heights = [(label.y - low) / ((high - low) or 1) for label in wanted]
    for label, y in zip(wanted, spread(heights, spacing), strict=True):
        axes.text(
            1 + gap / width,
            y,
            label.text,
            transform=axes.transAxes,
            color=label.color,
            fontsize=SMALL_SIZE,
            verticalalignment="center",
        )


def spread(heights: Sequence[float], spacing: float) -> list[float]:
    """Move heights apart until neighbours have a minimum distance.

    Heights that are too close form a group around their mean, within 0 and 1 if possible.

    Args:
        heights: heights in rising order.
        spacing: minimum distance.

    Returns:
        The new heights, in the same order.
    """
    # Groups that overlap are joined.
    groups: list[list[float]] = []
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and _top(groups[-2], spacing) + spacing > _bottom(
            groups[-1], spacing
        ):
            last = groups.pop()
            groups[-1].extend(last)
    placed: list[float] = []
    for group in groups:
        start = _bottom(group, spacing)
        placed.extend(start + index * spacing for index in range(len(group)))
    return placed


def _bottom(group: Sequence[float], spacing: float) -> float:
    reach = (len(group) - 1) * spacing
    start = sum(group) / len(group) - reach / 2
    return max(min(start, 1 - reach), 0.0)


def _top(group: Sequence[float], spacing: float) -> float:
    return _bottom(group, spacing) + (len(group) - 1) * spacing


def save(made: Figure, path: Path, *, kind: str = ".png", scale: float = 2.0) -> None:
    """Write a figure to a file, in the colours of the light page.

    Args:
        made: the figure.
        path: path of the file, which is replaced if it exists.
        kind: format of the file, whatever its name: ``.png``, ``.svg`` or ``.pdf``.
        scale: pixels of a PNG file for each pixel of the figure.

    Raises:
        OSError: the file cannot be written.
    """
    with styled():
        # Without matplotlib's version, which it would add to a PNG file.
        metadata = {"Software": None} if kind == ".png" else None
        form = kind.removeprefix(".")
        made.savefig(path, format=form, dpi=_DPI * scale, metadata=metadata)


def _fix(axis: Axis, ticks: Sequence[float], form: Callable[[float], str]) -> None:
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: form(value)))


def _steps(step: float, greatest: float) -> list[float]:
    count = math.floor(greatest / step * (1 + 1e-9))
    return [index * step for index in range(count + 1)]


def _left_share(axes: Axes) -> float:
    """Return the left margin as a multiple of the axes' width."""
    made = axes.figure
    assert isinstance(made, Figure)
    box = axes.get_position()
    return float(box.x0 - 2 / (made.get_figwidth() * _DPI)) / float(box.width)
