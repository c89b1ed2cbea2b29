"""One table model with three renderers: plain text, terminal and HTML.

Build a :class:`Table` of raw values once, by rows or by :meth:`Table.of` of items; each column's
kind formats its cells::

    table = Table(
        columns=[Column("site", "name"), Column("down", "bytes"), Column("train", "seconds", 2)],
        rows=[Row(["site-1", 2 << 20, 1.5]), Row(["site-2", None, 0.2], mark="bad")],
        title="Sites (in seconds)",
    )
    lines = table.lines(width=80)    # plain text that fits 80 columns; without a width, whole
    console.print(table)             # rich: fits the console, with colours
    {{ show(table) }}                # HTML, in a template: a macro of run.html

A table that is too wide first shortens names and sentences with an ellipsis, then leaves out the
columns of the highest rank and says which; a number is never cut. Of a long table show the ends,
``Table(columns, ends(rows))``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from flstream.report.text import GAP, clip, counted, elide, format_metric, wrapped
from flstream.text import brief_names, printable
from flstream.units import format_bytes, format_rate, format_seconds

Kind = Literal[
    "name",  # str; a long one lacks its middle
    "text",  # str; a long one lacks its end
    "state",  # str, coloured: finished, failed, training, ...
    "link",  # Link
    "count",  # int, or a float that is rounded: 12,345
    "number",  # int or float: 6,912.5
    "bytes",  # int, or a float that is rounded: 17.3 MiB
    "seconds",  # float: 12.35, whose unit the title or the heading names
    "duration",  # float seconds: 2m 05s
    "rate",  # float bytes a second: 310.5 MiB/s
    "metric",  # float: 0.9731
    "shade",  # Shade: a number on a ground that is the darker the higher it is
    "share",  # float from 0 to 1: 40%, in HTML with a bar
]
"""Kind of a column: type of its cells, and how they are formatted. None is a dash in any."""

Cell = Any
Mark = Literal["", "best", "bad", "different"]

STATE_STYLES = {
    "finished": "bold green",
    "failed": "bold red",
    "stopped": "bold yellow",
    "unfinished": "bold yellow",
    "running": "cyan",
    "downloading": "cyan",
    "uploading": "magenta",
    "training": "yellow",
    "evaluating": "blue",
    "submitting": "magenta",
    "ready": "green",
}
"""Styles of states on a terminal, as rich names them."""

_MARK_STYLES = {"best": "bold", "bad": "red", "different": "bold"}
_LEFT = ("name", "text", "state", "link")
# In columns of these kinds, zero of an item stands for no value.
_NONE_IF_ZERO = ("bytes", "seconds", "duration", "rate")
_STAR = " *"
# Least width of a column that can be shortened, and of any heading.
_LEAST = {"name": 8, "link": 8, "text": 16}
_LEAST_HEAD = 9
# Most columns that a line names which does not show them.
_MOST_NAMED = 12


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        head: Heading.
        kind: Kind of the cells.
        rank: Order in which columns are left out where not all fit, the highest first; columns of
            rank 0 stay as long as the first one has room beside them.
        cell: Function of an item that gives the cell, or a path of attributes.
        least: Minimum width, for columns that must not move while a view is redrawn.
        most: Maximum width of names and text; 0 for as wide as the longest.
    """

    head: str
    kind: Kind = "text"
    rank: int = 0
    cell: str | Callable[[Any], Any] = ""
    least: int = 0
    most: int = 0


class Link(NamedTuple):
    """Cell with the address of a page, or without; on a terminal its text alone."""

    text: str
    address: str


class Shade(NamedTuple):
    """Number with its place between the lowest and the highest, from 0 to 1."""

    value: float
    place: float


class Row(NamedTuple):
    """A row of a table."""

    cells: Sequence[Cell]  # raw values, one for each column; None for no value
    mark: Mark = ""  # ``best`` (a star in plain text), ``bad``, ``different``, or empty
    color: str = ""  # CSS colour that stands for the row in charts; empty for none


class Gap(NamedTuple):
    """Rows that a table leaves out in its middle."""

    rows: int

    def __str__(self) -> str:
        """Return the sentence in place of the rows."""
        return f"... {counted(self.rows, 'row')} left out"


def ends(rows: Iterable[Row], first: int = 5, last: int = 12, most: int = 20) -> list[Row | Gap]:
    """Return the first, last and best rows of a table of more than ``most`` rows.

    Gaps between them say how many rows are left out.
    """
    rows = list(rows)
    if len(rows) <= most:
        return [*rows]
    shown: list[Row | Gap] = []
    hidden = 0
    for place, row in enumerate(rows):
        if first <= place < len(rows) - last and row.mark != "best":
            hidden += 1
            continue
        shown += [Gap(hidden), row] if hidden else [row]
        hidden = 0
    return shown + [Gap(hidden)] * bool(hidden)


@dataclass(frozen=True)
class Table:
    """Table that rich, plain text and HTML render."""

    columns: Sequence[Column]  # the columns, the first of which names the row
    rows: Sequence[Row | Gap]  # rows, and gaps where rows are left out
    title: str = ""  # heading above the table; empty for none
    # Whether the table is redrawn in place: what does not fit is left out silently.
    is_live: bool = False

    @classmethod
    def of(
        cls,
        first: Column,
        items: Iterable[tuple[Cell, Any]],
        columns: Iterable[Column],
        title: str = "",
        mark: Callable[[Any], Mark] = lambda _: "",
        shown: tuple[int, int, int] | None = None,
    ) -> Table:
        """Build the table of items, each after its name; None is an empty item.

        A column of a rank above 0 is left out where no item has a value for it.

        Args:
            first: Column of the names.
            items: Names and items.
            columns: The other columns.
            title: Heading above the table.
            mark: Function that returns the mark of an item's row.
            shown: Arguments of :func:`ends`; None for all rows.
        """
        items = list(items)
        heads, rows = [first], [[name] for name, _ in items]
        for column in columns:
            take = attrgetter(column.cell) if isinstance(column.cell, str) else column.cell
            cells = [None if item is None else take(item) for _, item in items]
            if column.kind in _NONE_IF_ZERO:
                cells = [cell or None for cell in cells]
            if not column.rank or any(cell is not None for cell in cells):
                heads.append(column)
                for row, cell in zip(rows, cells, strict=True):
                    row.append(cell)
        marked = [Row(row, mark(item)) for row, (_, item) in zip(rows, items, strict=True)]
        return cls(heads, ends(marked, *shown) if shown else marked, title)

    def lines(self, width: int | None = None) -> list[str]:
        """Return the table as lines of text that fit a width in columns, if any do."""
        return [line.plain for line in self._lines(width)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the table on a terminal."""
        yield from self._lines(options.max_width)

    def _lines(self, width: int | None) -> Iterator[Text]:
        rows = [row for row in self.rows if isinstance(row, Row)]
        kinds = [column.kind for column in self.columns]
        texts = [list(map(format_cell, row.cells, kinds)) for row in rows]
        if any(row.mark == "best" for row in rows):
            for row, cells in zip(rows, texts, strict=True):
                cells[0] += _STAR if row.mark == "best" else " " * len(_STAR)
        shown, widths = _fit(self.columns, texts, width)
        heads = [_padded(kinds[at], printable(self.columns[at].head), widths[at]) for at in shown]
        yield Text(GAP.join(heads).rstrip(), "dim", no_wrap=True)
        remaining = iter(zip(rows, texts, strict=True))
        for gap in self.rows:
            if isinstance(gap, Gap):
                yield Text(str(gap), "dim")
                continue
            row, cells = next(remaining)
            line = Text(style=_MARK_STYLES.get(row.mark, ""), no_wrap=True)
            for at in shown:
                style = STATE_STYLES.get(row.cells[at], "") if kinds[at] == "state" else ""
                line.append(GAP if line else "").append(
                    _padded(kinds[at], cells[at], widths[at]), style
                )
            line.rstrip()
            yield line
        if len(shown) < len(self.columns) and not self.is_live:
            names = [column.head for at, column in enumerate(self.columns) if at not in shown]
            text = f"not shown at this width: {brief_names([*filter(None, names)], _MOST_NAMED)}"
            yield from (Text(part, "dim") for part in wrapped([text], width))


_FORMATS: dict[Kind, Callable[[Any], str]] = {
    "name": printable,
    "text": printable,
    "state": printable,
    "link": lambda link: printable(link.text),
    "count": lambda count: f"{round(count):,}",
    "number": lambda number: f"{number:,.6g}",
    "bytes": lambda size: format_bytes(round(size)),
    "seconds": lambda seconds: f"{seconds:,.2f}",
    "duration": format_seconds,
    "rate": format_rate,
    "metric": format_metric,
    "shade": lambda cell: f"{cell[0]:,}" if isinstance(cell[0], int) else format_metric(cell[0]),
    "share": lambda share: f"{share:.0%}",
}


def format_cell(cell: Cell, kind: Kind, none: str = "-") -> str:
    """Format a cell of a column; ``none`` stands for no value."""
    return none if cell is None else _FORMATS[kind](cell)


def _fit(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None
) -> tuple[list[int], list[int]]:
    """Return the indices of the columns that fit a width, and all columns' widths."""
    natural, least = [], []
    for index, column in enumerate(columns):
        cells = max((_width(row[index]) for row in rows), default=0)
        cells = min(cells, column.most or cells)
        head = _width(column.head)
        natural.append(max(cells, head, column.least))
        shortest = min(cells, _LEAST.get(column.kind, cells))
        least.append(max(shortest, min(head, _LEAST_HEAD), column.least))
    shown = list(range(len(columns)))
    if width is None:
        return shown, natural
    need, dropped = sum(size + len(GAP) for size in least) - len(GAP), set[int]()
    for index in sorted(shown[1:], key=lambda index: (columns[index].rank, index), reverse=True):
        if need <= width:
            break
        dropped.add(index)
        need -= least[index] + len(GAP)
    shown = [index for index in shown if index not in dropped]
    if len(shown) == 1:
        least[0] = min(least[0], width)
    room = width - sum(least[i] + len(GAP) for i in shown) + len(GAP)
    widths = list(least)
    for index in shown:
        more = min(natural[index] - least[index], room)
        widths[index] += more
        room -= more
    return shown, widths


def _width(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def _padded(kind: Kind, text: str, width: int) -> str:
    text = clip(text, width) if kind == "text" else elide(text, width)
    blank = " " * (width - _width(text))
    return text + blank if kind in _LEFT else blank + text
