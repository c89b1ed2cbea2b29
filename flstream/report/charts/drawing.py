"""Charts as images for a page."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable
from typing import NamedTuple

from matplotlib.figure import Figure

from flstream.report.charts.style import styled

_WIDE, _NARROW = 740.0, 350.0


class Drawing(NamedTuple):
    """A chart as images that are part of the page. Equal charts give equal images.

    Attributes:
        text: description of the chart for screen readers.
        narrow: address (``data:``) of the SVG for half the text column or a phone.
        wide: address of the SVG for the whole text column; None if there is only the narrow one.
    """

    text: str
    narrow: str
    wide: str | None = None


def drawing(text: str, draw: Callable[[float], Figure], *, is_half: bool = False) -> Drawing:
    """Draw a chart at each of the widths of a page.

    Args:
        text: description of the chart for screen readers.
        draw: function that draws it at a width in pixels.
        is_half: whether to draw the narrow chart only.
    """
    return Drawing(text, _address(draw(_NARROW)), None if is_half else _address(draw(_WIDE)))


def _address(made: Figure) -> str:
    buffer = io.BytesIO()
    with styled():
        metadata = {"Date": None, "Creator": None}
        made.savefig(buffer, format="svg", facecolor="none", metadata=metadata)
    return f"data:image/svg+xml;base64,{b64encode(buffer.getvalue()).decode()}"
