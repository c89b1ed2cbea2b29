"""The look that all charts share: colours, type, axes with units, labels beside what they name.

Importing this imports matplotlib, so whoever draws imports it where it draws. Everything that makes
a figure or writes one does so inside ``styled()``. Charts are laid out in pixels of the page, by
hand: that is the same on every machine, and takes no time.

Colours are drawn as those of the light page. Each of them stands for its name: in a page the
browser looks the name up, so that the same drawing serves light and dark (see ``charts.svg``).
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

# It warns of fonts and of cache folders that it cannot write to, where a run has its own to say.
logging.getLogger("matplotlib").setLevel(logging.ERROR)


class Color(NamedTuple):
    """A colour by what it is for, on a light page and on a dark one."""

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
        # After Okabe and Ito (2008), who chose them to be told apart by the colour-blind too.
        Color("blue", "#0072b2", "#4fa8e0"),
        Color("vermilion", "#d55e00", "#f58a42"),
        Color("green", "#009e73", "#3cc79c"),
        Color("pink", "#c2649a", "#dd8fbb"),
        Color("orange", "#e69f00", "#f0b840"),
        Color("sky", "#56b4e9", "#8dd0f7"),
        Color("violet", "#6650a8", "#a997e8"),
    )
}
"""Every colour of a chart, by its name."""

SERIES = ("blue", "vermilion", "green", "pink", "orange", "sky", "violet")
"""Colours of things that are compared, in the order in which they are taken."""

TEXT_SIZE, SMALL_SIZE = 12.0, 11.0
LINE_WIDTH = 1.8
STEPS = (1, 2, 5, 10)
"""What axes of plain numbers count in."""

# Figures are in pixels of a page, and matplotlib counts in inches.
_DPI = 72
# Matplotlib's own defaults come first, so that nothing depends on a user's settings. Without its
# backend: setting that would have it look for a display.
_RC: dict[str, Any] = {
    **{name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"},
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": TEXT_SIZE,
    "svg.fonttype": "none",
    "text.parse_math": False,  # names are names, also those with a dollar in them
}


@contextmanager
def styled(more: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Matplotlib's settings for as long as the block lasts: this style, nothing of the user's.

    Args:
        more: settings on top of it, by matplotlib's names.
    """
    settings: Any = {**_RC, **(more or {})}
    with warnings.catch_warnings(), matplotlib.rc_context(settings):
        # A name in a script that the measuring font lacks is off by a few pixels, no more.
        warnings.filterwarnings("ignore", "Glyph ")
        yield


def ink(name: str) -> str:
    """A colour by its name, as charts are to draw it."""
    return COLORS[name].light


def series_color(index: int) -> str:
    """The colour of the thing with this index among those compared, as charts are to draw it."""
    return ink(SERIES[index % len(SERIES)])


def figure(width: float, height: float) -> Figure:
    """An empty figure of so many pixels. Its background is the page's."""
    made = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
    made.patch.set_facecolor(ink("paper"))
    return made


def add_axes(
    made: Figure, *, left: float, right: float, top: float = 14, bottom: float = 40
) -> Axes:
    """Axes with margins of so many pixels, for their labels: quiet, with horizontal grid lines."""
    width, height = made.get_figwidth() * _DPI, made.get_figheight() * _DPI
    box = (left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height)
    axes = made.add_axes(box)
    axes.patch.set_visible(False)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(ink("faint"))
    axes.grid(visible=True, axis="y", color=ink("grid"), linewidth=1)
    axes.set_axisbelow(True)
    # Labels say where a value is, so that marks on the axes would say it twice.
    axes.tick_params(left=False, bottom=False, labelcolor=ink("muted"), labelsize=SMALL_SIZE, pad=6)
    return axes


def name_axes(axes: Axes, x: str, y: str) -> None:
    """Say what the axes are: ``x`` below at the right, ``y`` above at the left."""
    text: Any = {"color": ink("muted"), "fontsize": SMALL_SIZE}
    axes.set_xlabel(x, loc="right", labelpad=4, **text)
    # Written along the axis it would have to be read with the head turned.
    axes.set_ylabel(y, rotation=0, horizontalalignment="left", verticalalignment="bottom", **text)
    axes.yaxis.set_label_coords(-_left_share(axes), 1.04)


def byte_axis(axis: Axis, greatest: float, most: int = 5) -> None:
    """Label an axis from 0 to ``greatest`` in bytes, at round numbers of KiB, MiB or GiB."""
    _fix(axis, byte_ticks(greatest, most), lambda value: format_bytes(round(value)))


def second_axis(axis: Axis, greatest: float, most: int = 6) -> None:
    """Label an axis from 0 to ``greatest`` in seconds, minutes or hours."""
    _fix(axis, second_ticks(greatest, most), format_second_tick)


def byte_ticks(greatest: float, most: int = 5) -> list[float]:
    """Values from 0 to ``greatest`` at steps of a power of two, at most ``most`` steps."""
    step = 2.0 ** max(math.ceil(math.log2(max(greatest, 1) / most)), 0)
    return _steps(step, greatest)


_SECOND_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200)
_DAY = 86400


def second_ticks(greatest: float, most: int = 6) -> list[float]:
    """Values from 0 to ``greatest`` at steps that clocks have, at most ``most`` steps."""
    least = max(greatest, 1e-6) / most
    if least <= 1:
        power = 10.0 ** math.floor(math.log10(least))
        step = next(power * each for each in (1, 2, 5, 10) if power * each >= least * (1 - 1e-9))
    else:
        days = _DAY * 2.0 ** max(math.ceil(math.log2(least / _DAY)), 0)
        step = next((float(each) for each in _SECOND_STEPS if each >= least), days)
    return _steps(step, greatest)


def format_second_tick(seconds: float) -> str:
    """A duration at an axis: ``0.5 s``, ``20 s``, ``1 min 30 s``, ``5 min``, ``1 h 30 min``."""
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
    """A text beside the end of what it names.

    Attributes:
        y: height of the end, in the data's units.
        color: as from :func:`ink`.
    """

    y: float
    text: str
    color: str


def label_ends(axes: Axes, labels: Sequence[Label], *, gap: float = 8) -> None:
    """Write labels at the right of the axes, at the height of what they name, none over another.

    The axes' limits have to be set by now.

    Args:
        axes: with a right margin wide enough for the texts.
        labels: in any order.
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
    """Move heights, in rising order, apart until neighbours are ``spacing`` from each other.

    Those that are too close form a group around their mean, which stays within 0 and 1 if it can.
    """
    # A group is the sum of its heights and their indices; groups that overlap become one.
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
    """Write a figure as a file in the colours of the light page.

    Args:
        made: the figure.
        path: of the file, whatever its ending; what is there is replaced.
        kind: what the file is: ``.png``, ``.svg`` or ``.pdf``.
        scale: pixels of a PNG file for each pixel of the figure.

    Raises:
        OSError: the file cannot be written.
    """
    with styled():
        # A PNG file would name the version of matplotlib that drew it.
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
    """The margin at the left, in widths of the axes."""
    made = axes.figure
    assert isinstance(made, Figure)
    box = axes.get_position()
    return float(box.x0 - 2 / (made.get_figwidth() * _DPI)) / float(box.width)
