"""Tables and sections as plain text, which nothing is cut from: what is too long is folded.

Rich's tables measure and wrap every cell several times over, which takes seconds for a checkpoint
of ten thousand tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from typing import NamedTuple, TypeVar

from rich.cells import cell_len, set_cell_size

from flstream.report.text import GAP, fold, section, wrapped

__all__ = ["GAP", "fold", "section", "wrapped"]

# Width to which a table's widest column of text is folded, before it is laid out in another way.
_LEAST_TEXT = 16
# Rows of a table up to which it is split into several tables of fewer columns.
_MOST_SPLIT = 24
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


class ColumnLine(NamedTuple):
    """A line of a table.

    Attributes:
        text: text of the line.
        is_head: whether it is of the headings.
    """

    text: str
    is_head: bool


def table_lines(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None,
    *,
    left: int = 1,
    limits: Mapping[int, int] | None = None,
) -> list[ColumnLine]:
    """Format a table.

    Where a terminal is too narrow for its columns, a table of few rows is split into several ones
    of fewer columns below one another; one of many rows or long names has each row's first cell on
    a line of its own.

    Args:
        head: heading of each column.
        rows: rows of cells, in printable text.
        width: columns of the terminal; None if the output is not a terminal, and nothing is folded.
        left: number of columns, from the first, that are aligned left; the others are numbers.
        limits: widths on a terminal from which on cells are folded, by index of the column.

    Returns:
        The headings and lines of each row; nothing without rows.
    """
    if not rows:
        return []
    table = _Table(head, rows, width, left, limits or {})
    widths = table.widths
    columns = range(len(widths))
    if width is None:
        return list(table.lines(columns))
    first, widest = widths[0], max(range(left), key=widths.__getitem__)
    rest = widths[widest] + width - _whole(widths)
    if rest >= min(widths[widest], _LEAST_TEXT):
        widths[widest] = min(widths[widest], rest)
        return list(table.lines(columns))
    if first > width // 2 or len(rows) > _MOST_SPLIT:
        return list(table.stacked(width))
    widths[0] = min(first, max(width // 2, 1))
    lines: list[ColumnLine] = []
    for group in table.groups(width - widths[0] - len(GAP)):
        blank = [ColumnLine("", False)] if lines else []
        lines += [*blank, *table.lines([0, *group])]
    return lines


def fits(table: Sequence[Sequence[str]], width: int) -> bool:
    """Return whether a table, of headings and rows, fits a width without being split or folded."""
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    return _whole(widths) <= width


def _whole(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def column_lines(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None,
    *,
    left: int,
    limits: Mapping[int, int] | None = None,
) -> list[str]:
    """Format a table as :func:`table_lines` does, without telling headings from rows."""
    return [line.text for line in table_lines(head, rows, width, left=left, limits=limits)]


class _Table:
    """Cells of a table, with the widths of its columns."""

    def __init__(
        self,
        head: Sequence[str],
        rows: Sequence[Sequence[str]],
        width: int | None,
        left: int,
        limits: Mapping[int, int],
    ) -> None:
        self._rows = [head, *rows]
        self._left = left
        self.widths = [max(map(cell_len, column)) for column in zip(*self._rows, strict=True)]
        if width is not None:
            most = max(width - len(GAP), 1)
            for index in range(1, len(self.widths)):
                self.widths[index] = min(self.widths[index], limits.get(index, most), most)

    def groups(self, room: int) -> Iterator[list[int]]:
        """Group the columns after the first, so that each group fits a width."""
        group: list[int] = []
        for index in range(1, len(self.widths)):
            wide = sum(self.widths[each] + len(GAP) for each in group) + self.widths[index]
            if group and wide > room:
                yield group
                group = []
            self.widths[index] = min(self.widths[index], max(room, 1))
            group.append(index)
        if group:
            yield group

    def lines(self, columns: Sequence[int]) -> Iterator[ColumnLine]:
        """Format some columns of the table."""
        for number, row in enumerate(self._rows):
            yield from (ColumnLine(text, not number) for text in self._row(row, columns))

    def stacked(self, width: int) -> Iterator[ColumnLine]:
        """Format each row on several lines: its first cell, and below it the others."""
        groups = list(self.groups(width - len(GAP)))
        for number, row in enumerate(self._rows):
            texts = fold(row[0], width) if row[0] else []
            for group in groups:
                if any(row[index] for index in group):
                    texts += [GAP + text for text in self._row(row, group)]
            yield from (ColumnLine(text, not number) for text in texts)

    def _row(self, row: Sequence[str], columns: Sequence[int]) -> Iterator[str]:
        folded = [fold(row[index], self.widths[index]) for index in columns]
        for pieces in zip_longest(*folded, fillvalue=""):
            cells = map(self._cell, columns, pieces)
            yield GAP.join(cells).rstrip()

    def _cell(self, index: int, text: str) -> str:
        if index < self._left:
            return set_cell_size(text, self.widths[index])
        return " " * (self.widths[index] - cell_len(text)) + text
