"""Text at the end of a bench: tables, bars, and a conclusion."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flstream.bench.compare import Comparison, Result
from flstream.bench.exchange import link_seconds
from flstream.bench.limits import MachineLimits
from flstream.bench.measurement import Ratios, ratios
from flstream.bench.plan import Plan
from flstream.job.link import NetworkLink
from flstream.report.bench.bars import memory_bars, second_bars
from flstream.report.bench.verdict import shortfalls, verdict
from flstream.report.console import new_table, print_section
from flstream.report.network import describe_links
from flstream.report.text import counted, format_elapsed, format_rate
from flstream.units import format_bytes

_NOT_RUN = "-"


def print_comparison(console: Console, plan: Plan, comparison: Comparison) -> None:
    """Print the figures of each case, the machine's limits, and what streaming saves."""
    limits, results = comparison.median_limits, comparison.results
    print_wrapped(console, _heading(plan))
    if plan.network is not None:
        print_wrapped(console, describe_link(plan.network, plan.model_bytes), "dim")
    if limits is not None:
        print_wrapped(console, _limits(limits), "dim")
        than = "bare pipe" if plan.network is None else "link"
        title = f"Seconds of a round; x: times the {than}'s, and the disk's"
        print_section(console, title, _seconds_table(plan, results, limits))
    title = "Memory: RSS and USS over idle at the peak; PSS of all processes"
    print_section(console, title, _memory_table(results))
    for sentence in shortfalls(plan.repeat, results):
        print_wrapped(console, sentence)
    for title, lines in (
        *memory_bars(console, plan, results),
        *second_bars(console, results),
    ):
        print_section(console, title, *lines)
    console.print()
    print_wrapped(console, verdict(plan, results, limits), "bold")


def print_wrapped(console: Console, sentence: str, style: str = "") -> None:
    """Print a sentence, wrapped between words at the console's width."""
    for line in textwrap.wrap(sentence, console.width, break_on_hyphens=False):
        console.print(Text(line, style=style))


def describe_link(link: NetworkLink, nbytes: int) -> str:
    """Return a sentence on the link of each client, and its seconds for a model in bytes."""
    down, up = (format_elapsed(each) for each in link_seconds(link, nbytes))
    facts, size = describe_links([link.facts]), format_bytes(nbytes)
    return f"Each link, emulated: {facts}. For {size} it takes {down} down and {up} up at least."


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
    than = "x pipe" if plan.network is None else "x link"
    heads = ("down", "MiB/s", "up+fold", "MiB/s", "durable", "requests", than, "x disk")
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
            _against(against),
            f"{against.checkpoint_disk:.2f}",
        )
    return table


def _against(against: Ratios) -> str:
    if against.exchange_link is None:
        return f"{against.exchange_pipe:.1f}"
    return f"{against.exchange_link:.2f}"


def _mib_rate(moved: int, seconds: float) -> str:
    rate = moved / seconds / (1 << 20)
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}"


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
