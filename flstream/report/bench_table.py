"""The table of a bench: a row for each case, compared with the first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from flstream.bench.cases import ROUNDS, BenchPlan
from flstream.bench.document import first_measured
from flstream.bench.measuring import Result
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
    heads = [*_HEADS, "error"] if plan.with_codecs else _HEADS
    rows = [_cells(result, first_measured(results))[: len(heads)] for result in results]
    print_table(console, f"A model of {size}, {clients}: {runs}", heads, rows)
    console.print()
    lines = [(_shortfall(result), "") for result in results if result.reason]
    lines.append((f"{_NOTES} {_ERROR_NOTE}" if plan.with_codecs else _NOTES, "dim"))
    for sentence, style in lines:
        for line in fold(sentence, console.width):
            console.print(Text(line, style=style))


def _cells(result: Result, first: Result | None) -> list[str]:
    figures = result.median
    if figures is None or first is None or first.median is None:
        return [result.case.name, *[_NOT_RUN] * len(_HEADS)]
    memory = (figures.server_over_idle, figures.client_over_idle, figures.total_pss)
    return [
        result.case.name,
        f"{figures.seconds:.2f}",
        f"{figures.seconds / first.median.seconds:.2f}",
        *(format_bytes(round(size)) for size in (*memory, figures.down_bytes, figures.up_bytes)),
        f"{figures.requests:,.0f}",
        format_rate(figures.rate),
        "exact" if result.digest == first.digest else f"{result.error or 0:.2%}",
    ]


def _shortfall(result: Result) -> str:
    ran = f"only {counted(len(result.runs), 'run')}" if result.runs else "not run"
    what = "failed" if result.has_failed else ran
    return f"{result.case.name}: {what}: {printable(result.reason)}"
