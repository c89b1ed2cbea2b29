"""Text at the end of a bench: tables, bars, and a conclusion."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flstream.bench.compare import Comparison, Result
from flstream.bench.limits import MachineLimits
from flstream.bench.plan import Plan
from flstream.bench.ratios import ratios
from flstream.report.bench.bars import memory_bars, second_bars
from flstream.report.bench.verdict import shortfalls, verdict
from flstream.report.console import new_table, print_section
from flstream.report.text import counted, format_rate
from flstream.units import format_bytes

_NOT_RUN = "-"


def print_comparison(console: Console, plan: Plan, comparison: Comparison) -> None:
    """Print the figures of each case, the machine's limits, and what streaming saves."""
    limits, results = comparison.median_limits, comparison.results
    _print_wrapped(console, _heading(plan))
    if limits is not None:
        _print_wrapped(console, _limits(limits), "dim")
        title = "Seconds of a round; x: times the bare pipe's, and the disk's"
        print_section(console, title, _seconds_table(plan, results, limits))
    title = "Memory: RSS and USS over idle at the peak; PSS of all processes"
    print_section(console, title, _memory_table(results))
    for sentence in shortfalls(plan, results):
        _print_wrapped(console, sentence)
    for title, lines in (
        *memory_bars(console, plan, results),
        *second_bars(console, results),
    ):
        print_section(console, title, *lines)
    console.print()
    _print_wrapped(console, verdict(plan, results, limits), "bold")


def _print_wrapped(console: Console, sentence: str, style: str = "") -> None:
    for line in textwrap.wrap(sentence, console.width, break_on_hyphens=False):
        console.print(Text(line, style=style))


def _heading(plan: Plan) -> str:
    chunks = ", ".join(format_bytes(size) for size in plan.chunk_sizes)
    size, sites = format_bytes(plan.model_bytes), counted(plan.clients, "client")
    return f"A model of {size}, {sites}, chunks of {chunks}: medians of {plan.repeat}."


def _limits(limits: MachineLimits) -> str:
    several = len(limits.pipe) > 1
    pipe = ", ".join(
        format_rate(rate) + (f" at {format_bytes(size)}" if several else "")
        for size, rate in limits.pipe.items()
    )
    memcpy, disk = format_rate(limits.memcpy), format_rate(limits.disk)
    return f"This machine: memcpy {memcpy}, disk {disk}, bare pipe {pipe}."


def _seconds_table(plan: Plan, results: Sequence[Result], limits: MachineLimits) -> Table:
    heads = ("down", "MiB/s", "up+fold", "MiB/s", "durable", "requests", "x pipe", "x disk")
    table = new_table("", *heads)
    for result in results:
        run = result.median
        if run is None:
            table.add_row(result.label, *[_NOT_RUN] * len(heads))
            continue
        against = ratios(plan, result.case, run, limits)
        table.add_row(
            result.label,
            f"{run.download:.2f}",
            _mib_rate(plan.moved_bytes, run.download),
            f"{run.upload_and_fold:.2f}",
            _mib_rate(plan.moved_bytes, run.upload_and_fold),
            f"{run.checkpoint:.2f}",
            f"{run.requests:,.0f}",
            f"{against.exchange_pipe:.1f}",
            f"{against.checkpoint_disk:.2f}",
        )
    return table


def _mib_rate(moved: int, seconds: float) -> str:
    return f"{moved / seconds / (1 << 20):,.0f}"


def _memory_table(results: Sequence[Result]) -> Table:
    heads = ("server", "USS", "client", "USS", "all PSS", "predicted")
    table = new_table("", *heads)
    for result in results:
        run, predicted = result.median, format_bytes(result.need.memory)
        if run is None:
            table.add_row(result.label, *[_NOT_RUN] * (len(heads) - 1), predicted)
            continue
        sizes = (
            run.server_peak_rss,
            run.server_peak_uss,
            run.client_peak_rss,
            run.client_peak_uss,
            run.total_peak_pss,
        )
        table.add_row(result.label, *(format_bytes(round(size)) for size in sizes), predicted)
    return table
