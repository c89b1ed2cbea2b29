"""The table of a bench: a row for each case, compared with the first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from flstream.bench.cases import BenchPlan
from flstream.bench.measuring import CaseResult
from flstream.report.console import print_tables
from flstream.report.table import Column, Table
from flstream.report.text import counted, wrapped
from flstream.text import printable
from flstream.units import format_bytes

_NOTES = (
    "Seconds are those of the second round; ratio: to the first case. Down, up and requests are of "
    "all clients; direct: of these, what receivers read from files or memory by themselves; rate: "
    "both ways, while they moved. Server and the largest client: peak RSS over "
    "that after their imports; all PSS: all processes at one time."
)
_ERROR_NOTE = (
    "Error: what the final model lost, divided by all changes of the first case's, as L2 norms; "
    "exact: it has the same digest."
)


def print_bench(console: Console, plan: BenchPlan, results: Sequence[CaseResult]) -> None:
    """Print the figures of each case, reasons for missing ones, and how to read them."""
    size, clients = format_bytes(plan.model_bytes), counted(plan.clients, "client")
    runs = f"medians of {plan.repeat} runs" if plan.repeat > 1 else "one run of each case"
    columns = _columns(results, with_codecs=plan.with_codecs)
    cases = [(result.case.name, result if result.median else None) for result in results]
    case = Column("case", "name")
    # A table that is too wide becomes two, of rounds and of memory.
    is_wide = max(map(len, Table.of(case, cases, columns).lines())) > console.width
    title = f"A model of {size}, {clients}: {runs}"
    for part in (columns[:7], columns[7:]) if is_wide else (columns,):
        print_tables(console, Table.of(case, cases, part, title))
        title = "Memory, and what was lost" if plan.with_codecs else "Memory"
    lines = [(_shortfall(result), "") for result in results if result.reason]
    lines.append((f"{_NOTES} {_ERROR_NOTE}" if plan.with_codecs else _NOTES, "dim"))
    console.print()
    for sentence, style in lines:
        for line in wrapped([sentence], console.width, 40):
            console.print(Text(line, style=style))


def _columns(results: Sequence[CaseResult], *, with_codecs: bool) -> list[Column]:
    digest = next((result.digest for result in results if result.runs), "")
    columns = [
        Column("seconds", "seconds", 0, "median.seconds"),
        Column("ratio", "seconds", 0, lambda result: result.ratio(results)),
        Column("down", "bytes", 0, "median.down_bytes"),
        Column("up", "bytes", 0, "median.up_bytes"),
        Column("direct", "bytes", 0, "median.direct_bytes"),
        Column("requests", "count", 0, "median.requests"),
        Column("rate", "rate", 0, "median.rate"),
        Column("server", "bytes", 0, "median.server_over_idle"),
        Column("client", "bytes", 0, "median.client_over_idle"),
        Column("all PSS", "bytes", 0, "median.total_pss"),
    ]

    def error(result: CaseResult) -> str:
        return "exact" if result.digest == digest else f"{result.loss or 0:.2%}"

    return [*columns, Column("error", "text", 0, error)] if with_codecs else columns


def _shortfall(result: CaseResult) -> str:
    ran = f"only {counted(len(result.runs), 'run')}" if result.runs else "not run"
    what = "failed" if result.has_failed else ran
    return f"{result.case.name}: {what}: {printable(result.reason)}"
