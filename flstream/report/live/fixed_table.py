"""Lines of cells whose columns stand still from one frame to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from flstream.report.text import clip, pad

_GAP = 1


class Column(NamedTuple):
    """A column that a table may have.

    Attributes:
        key: of its cells.
        head: above it.
        width: columns of the terminal that it takes, whatever is in it.
        rank: those of a lower rank are there before those of a higher one.
        is_number: whether it stands at the right of its width.
        most: how far it grows where there is room.
    """

    key: str
    head: str
    width: int
    rank: int
    is_number: bool = True
    most: int = 0


@dataclass(frozen=True)
class Row:
    """A row.

    Attributes:
        cells: by the keys of columns; one that is missing is blank.
        note: what stands in place of all cells but the first two, from there to the end.
    """

    cells: Mapping[str, str | Text]
    note: str = ""
    note_style: str = ""


def columns_that_fit(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns that ``width`` has room for, those of the lowest ranks, in their order.

    What is left over is given to those that can grow, from the first on.
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


def table_lines(columns: Sequence[Column], rows: Iterable[Row], width: int) -> list[Text]:
    """The heads, and a line a row. None is wider than ``width``."""
    columns = columns_that_fit(columns, width)
    heads = {column.key: Text(column.head, style="dim") for column in columns}
    return [_line(columns, row, width) for row in (Row(heads), *rows)]


def _line(columns: Sequence[Column], row: Row, width: int) -> Text:
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
    """Columns of the widest name; 0 without any."""
    return max(map(cell_len, names), default=0)
