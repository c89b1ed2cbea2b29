"""Tables as plain text, for many rows: rich's tables measure every cell several times over."""

from __future__ import annotations

import textwrap
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from rich.cells import cell_len

from flstream.report.text import elide, pad

GAP = "  "
_NAME_WIDTH = 4
# If a table is shortened that has more rows, only the first and the last ones are shown.
_MOST_ROWS, _FIRST_ROWS, _LAST_ROWS = 20, 5, 12

RowT = TypeVar("RowT")


def shortened(rows: Iterable[RowT]) -> list[RowT | None]:
    """Return rows as a table shows them: of many, the first and the last ones, with None between.

    Memory holds no more of them than that.
    """
    left = iter(rows)
    shown: list[RowT | None] = list(islice(left, _MOST_ROWS))
    last = deque(left, maxlen=_LAST_ROWS)
    if not last:
        return shown
    return [*shown[:_FIRST_ROWS], None, *[*shown[_FIRST_ROWS:], *last][-_LAST_ROWS:]]


def column_lines(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None,
    *,
    left: int,
    limits: Mapping[int, int] | None = None,
) -> list[str]:
    """Format a table.

    Args:
        head: heading of each column.
        rows: rows of cells, in printable text.
        width: columns of the terminal, for which the first column is cut in the middle; None if
            the output is not a terminal, and nothing is cut.
        left: number of columns, from the first, that are aligned left; the others are numbers.
        limits: maximum widths on a terminal, by index of the column.

    Returns:
        The heading and a line for each row; nothing without rows.
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
    """Indent lines below a heading and cut them to a width; return nothing without lines."""
    if not lines:
        return []
    indented = [GAP + line for line in lines]
    if width is None:
        return ["", head, *indented]
    return ["", elide(head, width), *(elide(line, width) for line in indented)]


def wrapped(sentences: Sequence[str], width: int | None) -> list[str]:
    """Wrap sentences between words, so that they fit a section of a terminal of this width."""
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
