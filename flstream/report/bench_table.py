"""The table of a bench: a row for each case, compared with the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from flstream.bench.cases import BenchPlan
from flstream.bench.measuring import Result
from flstream.report.console import print_tables
from flstream.report.table import Column, Row, Table
from flstream.report.text import counted, wrap_words
from flstream.text import printable
from flstream.units import format_bytes

_CASE = Column("case", "name")
_ROUND = (
    Column("seconds", "seconds"),
    Column("ratio", "seconds"),
    Column("down", "bytes"),
    Column("up", "bytes"),
    Column("requests", "count"),
    Column("rate", "rate"),
)
_MEMORY = (Column("server", "bytes"), Column("client", "bytes"), Column("all PSS", "bytes"))
_ERROR = Column("error", "text")
_NOTES = (
    "Seconds are those of the second round; ratio: to the first case. Down, up and requests are of "
    "all clients; rate: both ways, while they moved. Server and the largest client: peak RSS over "
    "that after their imports; all PSS: all processes at one time."
)
_ERROR_NOTE = (
    "Error: what the final model lost, divided by all changes of the first case's, as L2 norms; "
    "exact: it has the same digest."
)


def print_bench(console: Console, plan: BenchPlan, results: Sequence[Result]) -> None:
    """Print the figures of each case, why cases were not run, and how to read the figures."""
    size, clients = format_bytes(plan.model_bytes), counted(plan.clients, "client")
    runs = f"medians of {plan.repeat} runs" if plan.repeat > 1 else "one run of each case"
    memory = [*_MEMORY, *([_ERROR] if plan.with_codecs else [])]
    cells = [_cells(result, results) for result in results]
    table = _table([*_ROUND, *memory], cells, f"A model of {size}, {clients}: {runs}")
    tables = [table]
    if max(map(len, table.lines())) > console.width:
        rest = "Memory, and what was lost" if plan.with_codecs else "Memory"
        tables = [_table(_ROUND, cells, table.title), _table(memory, cells, rest)]
    for part in tables:
        print_tables(console, part)
    lines = [(_shortfall(result), "") for result in results if result.reason]
    lines.append((f"{_NOTES} {_ERROR_NOTE}" if plan.with_codecs else _NOTES, "dim"))
    console.print()
    for sentence, style in lines:
        console.print(Text("\n".join(wrap_words(sentence, console.width)), style=style))


def _table(columns: Sequence[Column], cells: Sequence[Mapping[str, Any]], title: str) -> Table:
    rows = [Row([row.get(column.head) for column in (_CASE, *columns)]) for row in cells]
    return Table([_CASE, *columns], rows, title)


def _cells(result: Result, results: Sequence[Result]) -> dict[str, Any]:
    """Return the cells of a case by their heads."""
    figures = result.median
    if figures is None:
        return {"case": result.case.name}
    is_exact = result.digest == next(other.digest for other in results if other.runs)
    return {
        "case": result.case.name,
        "seconds": figures.seconds,
        "ratio": result.ratio(results),
        "down": round(figures.down_bytes),
        "up": round(figures.up_bytes),
        "requests": round(figures.requests),
        "rate": figures.rate,
        "server": round(figures.server_over_idle),
        "client": round(figures.client_over_idle),
        "all PSS": round(figures.total_pss),
        "error": "exact" if is_exact else f"{result.loss or 0:.2%}",
    }


def _shortfall(result: Result) -> str:
    ran = f"only {counted(len(result.runs), 'run')}" if result.runs else "not run"
    what = "failed" if result.has_failed else ran
    return f"{result.case.name}: {what}: {printable(result.reason)}"
