"""Conversion of figures to SVG for a page, with the colours and fonts of its style sheet."""

from __future__ import annotations

import io
import re
from html import escape

from matplotlib.figure import Figure

from flstream.report.charts.style import COLORS, styled

_HEAD = re.compile(r"<svg [^>]*viewBox=\"([^\"]*)\"[^>]*>")
_UNUSED = re.compile(r"\s*<metadata>.*?</metadata>|<style .*?</style>", re.DOTALL)
# Replacements are made in tags alone, so that the text of a chart is never changed.
_TAG = re.compile(r"<[^>]*>")
_IDLE = re.compile(
    r" transform=\"rotate\(-?0 [^\"]*\)\"| font-family: [^;\"]*;| stroke-dashoffset: 0;?"
)
_ID = re.compile(r" id=\"([^\"]*)\"")
_USED_ID = re.compile(r"(?:href=\"|url\()#([^\")]*)")
_PATH = re.compile(r" d=\"[^\"]*\"")
_NUMBER = re.compile(r"-?\d+\.\d+")
_HEX = re.compile(r"#[0-9a-f]{6}\b")
_EMPTY = re.compile(r"<defs>\s*</defs>\s*")
_BLANKS = re.compile(r">\s+<")

_VARIABLES = {color.light: f"var(--{color.name})" for color in COLORS.values()}


def to_svg(made: Figure, name: str, description: str) -> str:
    """Convert a figure to an ``<svg>`` element for an HTML page.

    The element scales to the available width. Its colours are variables of the page's style sheet,
    such as ``--ink``, and its font is the page's. Equal figures with equal names give equal text.

    Args:
        made: the figure.
        name: name of the chart, unique in the page.
        description: description of the chart for screen readers.
    """
    buffer = io.StringIO()
    # Identifiers of clip paths are hashes. The salt keeps those of two charts apart: a shared one
    # would be lost where one of the charts is hidden.
    with styled({"svg.hashsalt": name}):
        made.savefig(
            buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    text = buffer.getvalue()
    head = _HEAD.search(text)
    assert head is not None, "matplotlib writes the viewBox of every figure"
    body = _UNUSED.sub("", text[head.end() :])
    used = {name for tag in _TAG.findall(body) for name in _USED_ID.findall(tag)}
    body = _TAG.sub(lambda tag: _slim(tag[0], used), body)
    body = _BLANKS.sub(">\n<", _EMPTY.sub("", body)).strip()
    label = escape(description, quote=True)
    opening = f'<svg viewBox="{head[1]}" role="img" aria-label="{label}">'
    return opening + body


def _slim(tag: str, used: set[str]) -> str:
    """Replace the colours in a tag by the page's variables, and remove superfluous attributes."""
    tag = _IDLE.sub("", tag)
    tag = _ID.sub(lambda found: found[0] if found[1] in used else "", tag)
    tag = _PATH.sub(lambda path: _NUMBER.sub(_rounded, path[0]).replace("\n", ""), tag)
    return _HEX.sub(lambda found: _VARIABLES.get(found[0], found[0]), tag)


def _rounded(number: re.Match[str]) -> str:
    # A tenth of a pixel is more precise than any screen.
    return f"{float(number[0]):.1f}".removesuffix(".0")
