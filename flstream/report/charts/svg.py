"""Figures as SVG inside a page: text is text, and colours are the page's, light or dark."""

from __future__ import annotations

import io
import re
from html import escape

from matplotlib.figure import Figure

from flstream.report.charts.style import COLORS, styled

_HEAD = re.compile(r"<svg [^>]*viewBox=\"([^\"]*)\"[^>]*>")
_UNUSED = re.compile(r"\s*<metadata>.*?</metadata>|<style .*?</style>", re.DOTALL)
# Everything is done tag by tag, so that no text of a chart is taken for one.
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
    """A figure as an ``<svg>`` element to be put into an HTML page.

    It takes the width it is given. Its colours are the page's variables, ``--ink`` and so on, and
    its type is the page's as well. The same figure under the same name gives the same text.

    Args:
        made: the figure.
        name: unlike that of every other chart in the page.
        description: what is to be seen, for whoever cannot see it.
    """
    buffer = io.StringIO()
    # Names of clip paths are hashes: without the salt, two charts could have one in common, and
    # lose it where the other one is hidden.
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
    """A tag in the page's colours, without what the page has no use for."""
    tag = _IDLE.sub("", tag)
    tag = _ID.sub(lambda found: found[0] if found[1] in used else "", tag)
    tag = _PATH.sub(lambda path: _NUMBER.sub(_rounded, path[0]).replace("\n", ""), tag)
    return _HEX.sub(lambda found: _VARIABLES.get(found[0], found[0]), tag)


def _rounded(number: re.Match[str]) -> str:
    # No screen shows more than a tenth of a pixel.
    return f"{float(number[0]):.1f}".removesuffix(".0")
