"""The table of a bench: a row for each case, compared with the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from flstream.bench.cases import BenchPlan
from flstream.bench.document import first_measured
from flstream.bench.measuring import Result
from flstream.report.console import print_tables
from flstream.report.table import Column, Row, Table
from flstream.report.text import counted, wrap_words
from flstream.text import printable
from flstream.units import format_bytes

_COLUMNS: Sequence[Column] = (
    Column("case", "name"),
    Column("seconds", "seconds"),
    Column("ratio", "seconds"),
    Column("down", "bytes"),
    Column("up", "bytes"),
    Column("requests", "count"),
    Column("rate", "rate"),
    Column("server", "bytes"),
    Column("client", "bytes"),
    Column("all PSS", "bytes"),
    Column("error", "text"),
)
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
    columns = _COLUMNS if plan.with_codecs else _COLUMNS[:-1]
    rows = [_cells(result, first_measured(results))[: len(columns)] for result in results]
    whole = Table(columns, [Row(cells) for cells in rows])
    # One that is too wide becomes two, of rounds and of memory.
    is_wide = max(map(len, whole.lines())) > console.width
    parts = (slice(1, 7), slice(7, None)) if is_wide else (slice(1, None),)
    title = f"A model of {size}, {clients}: {runs}"
    for part in parts:
        cells = [Row([row[0], *row[part]]) for row in rows]
        print_tables(console, Table([columns[0], *columns[part]], cells, title))
        title = "Memory, and what was lost" if plan.with_codecs else "Memory"
    lines = [(_shortfall(result), "") for result in results if result.reason]
    lines.append((f"{_NOTES} {_ERROR_NOTE}" if plan.with_codecs else _NOTES, "dim"))
    console.print()
    for sentence, style in lines:
        console.print(Text("\n".join(wrap_words(sentence, console.width)), style=style))


def _cells(result: Result, first: Result | None) -> list[Any]:
    figures = result.median
    if figures is None or first is None or first.median is None:
        return [result.case.name, *[None] * (len(_COLUMNS) - 1)]
    return [
        result.case.name,
        figures.seconds,
        figures.seconds / first.median.seconds,
        round(figures.down_bytes),
        round(figures.up_bytes),
        round(figures.requests),
        figures.rate,
        round(figures.server_over_idle),
        round(figures.client_over_idle),
        round(figures.total_pss),
        "exact" if result.digest == first.digest else f"{result.error or 0:.2%}",
    ]


def _shortfall(result: Result) -> str:
    ran = f"only {counted(len(result.runs), 'run')}" if result.runs else "not run"
    what = "failed" if result.has_failed else ran
    return f"{result.case.name}: {what}: {printable(result.reason)}"
