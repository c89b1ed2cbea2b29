"""Columns of text, for tables too long for rich's, which measures every cell several times over."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from rich.cells import cell_len

from flstream.report.text import elide, pad

GAP = "  "
_NAME_WIDTH = 4


def column_lines(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None,
    *,
    left: int,
    limits: Mapping[int, int] | None = None,
) -> list[str]:
    """A line a row, under the heads of the columns, or nothing without rows.

    Args:
        head: of each column.
        rows: cells, of printable text.
        width: columns of the terminal. The first column is cut in the middle so that the lines fit;
            without a terminal everything is whole, for whoever searches it.
        left: how many of the first columns begin at their left; the others are numbers.
        limits: the most that a column may take on a terminal, by its index.
    """
    if not rows:
        return []
    table = [head, *rows]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    if width is not None:
        for index, most in (limits or {}).items():
            widths[index] = min(widths[index], most)
        rest = width - sum(widths[1:]) - len(GAP) * (len(widths) - 1)
        widths[0] = min(widths[0], max(rest, _NAME_WIDTH))
    return [
        GAP.join(
            pad(cell, size) if index < left else cell.rjust(size)
            for index, (cell, size) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def section(head: str, lines: Sequence[str], width: int | None) -> list[str]:
    """Lines under a head, each cut to the width, or nothing if there are none."""
    if not lines:
        return []
    indented = [GAP + line for line in lines]
    if width is None:
        return ["", head, *indented]
    return ["", elide(head, width), *(elide(line, width) for line in indented)]


def wrapped(sentences: Sequence[str], width: int | None) -> list[str]:
    """Sentences, broken between words so that they fit below a head."""
    if width is None:
        return list(sentences)
    room = max(width - len(GAP), 20)
    return [
        line
        for sentence in sentences
        for line in textwrap.wrap(
            sentence, room, subsequent_indent=GAP, break_on_hyphens=False, max_lines=8
        )
    ]
