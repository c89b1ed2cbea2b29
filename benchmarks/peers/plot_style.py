"""Style of plots that matplotlib draws, of comparisons with peers.

Importing this module imports matplotlib, so it must be imported where plots are drawn, not at the
top of commands. Figures are made and written inside ``styled()``, which may decorate a function.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

# Suppresses warnings of fonts and of cache folders, which would appear among a run's output.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

# The same as in the pages' light colours, which are after Okabe and Ito (2008).
_SERIES = ("#0072b2", "#d55e00", "#009e73", "#c2649a", "#cf8a00", "#56b4e9", "#6650a8")

# Matplotlib's own defaults come first, so that nothing depends on a user's settings. Its backend is
# left out, since setting it would make matplotlib look for a display.
_STYLE: Any = {
    **{name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"},
    "figure.constrained_layout.use": True,
    "figure.dpi": 72,  # sizes are in pixels of a page
    "savefig.dpi": 144,
    "savefig.bbox": "tight",
    "text.parse_math": False,  # a dollar in a name is not markup
    "axes.spines.left": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.titlelocation": "left",
    "grid.color": "#e4e7eb",
    "ytick.major.size": 0,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "flstream",  # equal figures give equal files
}


@contextmanager
def styled() -> Iterator[None]:
    """Apply this style instead of the user's settings until the end of the block."""
    with matplotlib.rc_context(_STYLE):
        yield


def series_color(index: int) -> str:
    """Return the colour of a peer, by its index."""
    return _SERIES[index % len(_SERIES)]


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a file, cropped to its content, in the format of the name.

    Raises:
        OSError: The file cannot be written.
    """
    # Without matplotlib's version, which it would add to a PNG file.
    metadata = {"Software": None} if path.suffix.lower() == ".png" else None
    figure.savefig(path, metadata=metadata)
