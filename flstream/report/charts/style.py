"""The common style of all charts: colours, type, and axes of bytes and seconds.

Importing this module imports matplotlib, so it must be imported where charts are drawn, not at the
top of commands. Figures are made and written inside ``styled()``.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator

from flstream.units import format_bytes

# Suppresses warnings of fonts and of cache folders, which would appear among a run's output.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

# The same as in the style sheet's light colours.
INK, MUTED, FAINT, GRID, PAPER = "#1d232b", "#5d6773", "#a3acb6", "#e4e7eb", "#fefefe"
# After Okabe and Ito (2008): distinguishable by the colour-blind too. Orange is darker, so that it
# stands out where it is inverted.
BLUE, VERMILION, GREEN, PINK = "#0072b2", "#d55e00", "#009e73", "#c2649a"
ORANGE, SKY, VIOLET = "#cf8a00", "#56b4e9", "#6650a8"

SERIES = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, VIOLET)
"""Colours for compared runs, sites or modes, in order."""

LINE_WIDTH = 1.8

# Sizes are given in pixels of the page, which are points for matplotlib.
_DPI = 72
# Matplotlib's own defaults come first, so that nothing depends on a user's settings. Its backend is
# left out, since setting it would make matplotlib look for a display.
_STYLE: Any = {
    **{name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"},
    "figure.constrained_layout.use": True,
    "figure.dpi": _DPI,
    "figure.facecolor": PAPER,
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11,
    "text.color": INK,
    "text.parse_math": False,  # a dollar in a name is not markup
    "axes.facecolor": "none",
    "axes.edgecolor": FAINT,
    "axes.spines.left": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.labelcolor": MUTED,
    # What the vertical axis shows is written above it, where it is easier to read than along it.
    "axes.titlecolor": MUTED,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.titlesize": "medium",
    "axes.xmargin": 0.02,
    "grid.color": GRID,
    "xaxis.labellocation": "right",
    # No tick marks: the labels and the grid lines suffice.
    "xtick.labelcolor": MUTED,
    "xtick.major.pad": 6,
    "xtick.major.size": 0,
    "ytick.labelcolor": MUTED,
    "ytick.major.pad": 6,
    "ytick.major.size": 0,
    "lines.linewidth": LINE_WIDTH,
    "lines.markersize": 3.5,
    "legend.columnspacing": 1.2,
    "legend.frameon": False,
    "legend.handlelength": 1.2,
    "savefig.pad_inches": 0.2,
    "svg.fonttype": "none",
    "svg.hashsalt": "flstream",  # equal figures give equal files
}


@contextmanager
def styled() -> Iterator[None]:
    """Apply this style instead of the user's matplotlib settings, until the end of the block.

    It may also decorate a function that draws.
    """
    with warnings.catch_warnings(), matplotlib.rc_context(_STYLE):
        # A glyph that the font lacks only makes the measured width wrong by a few pixels.
        warnings.filterwarnings("ignore", "Glyph ")
        yield


def series_color(index: int) -> str:
    """Return the colour of a compared run, site or mode, by its index."""
    return SERIES[index % len(SERIES)]


def new_chart(width: float, height: float, x: str = "", y: str = "") -> tuple[Figure, Axes]:
    """Create a figure with one pair of axes.

    Args:
        width: width in pixels.
        height: height in pixels.
        x: title of the horizontal axis, below it at the right.
        y: title of the vertical axis, above it at the left.
    """
    made = Figure(figsize=(width / _DPI, height / _DPI))
    axes = made.subplots()
    axes.set_xlabel(x)
    axes.set_title(y)
    return made, axes


def byte_axis(axis: Axis, greatest: float) -> None:
    """Label an axis from 0 to ``greatest`` in bytes, at multiples of a power of two."""
    axis.set_major_locator(MultipleLocator(2.0 ** math.ceil(math.log2(max(greatest, 5) / 5))))
    axis.set_major_formatter(lambda value, _: format_bytes(round(value)))


def second_axis(axis: Axis, greatest: float) -> None:
    """Label an axis from 0 to ``greatest`` in the largest unit of time of which it has two."""
    units = ((86400, "d"), (3600, "h"), (60, "min"))
    size, unit = next((each for each in units if greatest >= 2 * each[0]), (1, "s"))
    step = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(0, greatest / size)[1]
    axis.set_major_locator(MultipleLocator(size * step))
    axis.set_major_formatter(lambda value, _: f"{value / size:g} {unit}")


def save(made: Figure, path: Path, *, kind: str = ".png") -> None:
    """Write a figure to a file, as large as what is drawn, with a margin.

    Args:
        made: the figure.
        path: path of the file, which is replaced if it exists.
        kind: format of the file, whatever its name: ``.png``, ``.svg`` or ``.pdf``. A PNG file has
            two pixels for each of the figure.

    Raises:
        OSError: the file cannot be written.
    """
    # Without matplotlib's version, which it would add to a PNG file.
    metadata = {"Software": None} if kind == ".png" else None
    form = kind.removeprefix(".")
    with styled():
        made.savefig(path, format=form, dpi=2 * _DPI, bbox_inches="tight", metadata=metadata)
