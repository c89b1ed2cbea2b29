"""Tables and bars of the live view, whose columns do not move from one frame to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table

from flstream.report.text import elide

_GAP = 1


class LiveColumn(NamedTuple):
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


def columns_that_fit(columns: Sequence[LiveColumn], width: int) -> list[LiveColumn]:
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


def fixed_table(
    columns: Sequence[LiveColumn],
    rows: Iterable[Mapping[str, RenderableType]],
    *,
    has_head: bool = True,
) -> Table:
    """Create a table with a line for each row.

    Args:
        columns: columns that fit the terminal.
        rows: cells by the keys of their columns; a missing one is blank. Names that are too long
            are cut in the middle.
        has_head: whether there is a line of headings.
    """
    table = Table(
        box=None,
        padding=(0, _GAP, 0, 0),
        pad_edge=False,
        show_header=has_head,
        header_style="dim",
    )
    for column in columns:
        table.add_column(
            column.head,
            width=column.width,
            no_wrap=True,
            overflow="crop",
            justify="right" if column.is_number else "left",
        )
    for row in rows:
        cells = (row.get(column.key, "") for column in columns)
        table.add_row(
            *(
                elide(cell, column.width) if isinstance(cell, str) else cell
                for cell, column in zip(cells, columns, strict=True)
            )
        )
    return table


def lines_of(parts: Iterable[RenderableType]) -> int:
    """Return the number of lines of tables and of texts of a line each."""
    return sum(
        part.row_count + part.show_header if isinstance(part, Table) else 1 for part in parts
    )


def bar(done: float, total: float, style: str) -> ProgressBar:
    """Create a progress bar as wide as its cell.

    Args:
        done: amount that is done.
        total: whole amount, in the same unit; 0 if it is not known.
        style: style of the filled part, as rich names it.
    """
    return ProgressBar(
        total=max(total, 1),
        completed=done,
        style="dim",
        complete_style=style,
        finished_style=style,
    )


def percent(done: float, total: float) -> str:
    """Format a share in whole percent, rounded down; an empty text if the total is 0."""
    return f"{min(int(100 * done / total), 100)}%" if total > 0 else ""
