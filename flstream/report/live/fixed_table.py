"""Tables with columns of fixed width, which do not move from one frame to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from flstream.report.text import clip, pad

_GAP = 1


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        key: key of the column's cells.
        head: heading of the column.
        width: width in columns of the terminal.
        rank: priority where not all columns fit; lower ranks come first.
        is_number: whether the cells are aligned right.
        most: maximum width where there is room; 0 for a fixed width.
    """

    key: str
    head: str
    width: int
    rank: int
    is_number: bool = True
    most: int = 0


@dataclass(frozen=True)
class FixedRow:
    """A row of a table.

    Attributes:
        cells: cells by the keys of their columns; a missing one is blank.
        note: text in place of all cells but the first two; empty for none.
        note_style: style of the note, as rich names it.
    """

    cells: Mapping[str, str | Text]
    note: str = ""
    note_style: str = ""


def columns_that_fit(columns: Sequence[Column], width: int) -> list[Column]:
    """Select the columns that fit a width, by rank, and widen those that can grow.

    Args:
        columns: all columns, in order.
        width: columns of the terminal.

    Returns:
        The columns that fit, in order, with their widths.
    """
    chosen: set[str] = set()
    room = width + _GAP
    for column in sorted(columns, key=lambda each: each.rank):
        if column.width + _GAP <= room:
            chosen.add(column.key)
            room -= column.width + _GAP
    fitting = []
    for column in columns:
        if column.key in chosen:
            more = min(max(column.most - column.width, 0), room)
            room -= more
            fitting.append(column._replace(width=column.width + more))
    return fitting


def table_lines(columns: Sequence[Column], rows: Iterable[FixedRow], width: int) -> list[Text]:
    """Format the headings and a line for each row, none wider than ``width``."""
    columns = columns_that_fit(columns, width)
    heads = {column.key: Text(column.head, style="dim") for column in columns}
    return [_line(columns, row, width) for row in (FixedRow(heads), *rows)]


def _line(columns: Sequence[Column], row: FixedRow, width: int) -> Text:
    line = Text(no_wrap=True)
    for index, column in enumerate(columns):
        if index:
            line.append(" " * _GAP)
        if row.note and index == 2:
            return _cut(line.append(clip(row.note, width - line.cell_len), row.note_style))
        cell = row.cells.get(column.key, "")
        text = cell if isinstance(cell, Text) else Text(cell)
        if text.cell_len > column.width:
            text = Text(pad(text.plain, column.width), style=text.style)
        blank = " " * (column.width - text.cell_len)
        line.append_text(Text(blank) + text if column.is_number else text + blank)
    return _cut(line)


def _cut(line: Text) -> Text:
    line.rstrip()
    return line


def widest(names: Iterable[str]) -> int:
    """Return the width of the widest name in columns; 0 without any."""
    return max(map(cell_len, names), default=0)
