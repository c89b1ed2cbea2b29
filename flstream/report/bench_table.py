"""The table of a bench: a row for each case, compared with the first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from flstream.bench.cases import ROUNDS, BenchPlan
from flstream.bench.document import first_median
from flstream.bench.measuring import Figures, Result
from flstream.report.columns import fold
from flstream.report.console import print_table
from flstream.report.text import counted
from flstream.text import printable
from flstream.units import format_bytes, format_rate

_NOT_RUN = "-"
_HEADS = (
    "case", "seconds", "ratio", "server", "client", "all PSS", "down", "up", "requests", "rate"
)  # fmt: skip
_NOTES = (
    f"Seconds are those of round {ROUNDS}, with making the model durable; ratio: to the first "
    "case. Down, up and requests are of all clients; rate: both ways, while they moved. Server and "
    "the largest client: peak RSS over that after their imports; all PSS: all processes at one "
    "time."
)
_ERROR_NOTE = (
    "Error: what the final model lost, divided by all changes of the first case's, as L2 norms; "
    "exact: it has the same digest."
)


def print_bench(console: Console, plan: BenchPlan, results: Sequence[Result]) -> None:
    """Print the figures of each case, why cases were not run, and how to read the figures."""
    size, clients = format_bytes(plan.model_bytes), counted(plan.clients, "client")
    runs = f"medians of {plan.repeat} runs" if plan.repeat > 1 else "one run of each case"
    first = first_median(results)
    heads, rows = list(_HEADS), [_cells(result, first) for result in results]
    if plan.with_codecs:
        heads.append("error")
        for row, result in zip(rows, results, strict=True):
            row.append(_error(result, results[0]))
    print_table(console, f"A model of {size}, {clients}: {runs}", heads, rows)
    console.print()
    shortfalls = [
        f"{result.case.name}: {_shortfall(result)}" for result in results if result.reason
    ]
    notes = f"{_NOTES} {_ERROR_NOTE}" if plan.with_codecs else _NOTES
    for sentence, style in (*((each, "") for each in shortfalls), (notes, "dim")):
        for line in fold(sentence, console.width):
            console.print(Text(line, style=style))


def _cells(result: Result, first: Figures | None) -> list[str]:
    figures = result.median
    if figures is None or first is None:
        return [result.case.name, *[_NOT_RUN] * (len(_HEADS) - 1)]
    memory = (figures.server_over_idle, figures.client_over_idle, figures.total_pss)
    moved = (figures.down_bytes, figures.up_bytes)
    return [
        result.case.name,
        f"{figures.seconds:.2f}",
        f"{figures.seconds / first.seconds:.2f}",
        *(format_bytes(round(size)) for size in (*memory, *moved)),
        f"{figures.requests:,.0f}",
        format_rate(figures.rate),
    ]


def _error(result: Result, first: Result) -> str:
    if result.error is None:
        return _NOT_RUN
    return "exact" if result.digest == first.digest else f"{result.error:.2%}"


def _shortfall(result: Result) -> str:
    ran = f"only {counted(len(result.runs), 'run')}" if result.runs else "not run"
    what = "failed" if result.has_failed else ran
    return f"{result.case.name}: {what}: {printable(result.reason)}"
