"""Text at the end of a bench: tables, bars, and a conclusion."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from flstream.bench.compare import Comparison, Result
from flstream.bench.exchange import link_seconds
from flstream.bench.limits import MachineLimits
from flstream.bench.measurement import Ratios, ratios
from flstream.bench.plan import Plan
from flstream.job.link import NetworkLink
from flstream.report.bench.bars import memory_bars, second_bars
from flstream.report.bench.verdict import shortfalls, verdict
from flstream.report.columns import fold
from flstream.report.console import print_section, print_table
from flstream.report.network import describe_links
from flstream.report.text import counted, format_elapsed, format_throughput
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
        heads, rows = _seconds_heads(plan), _seconds_rows(plan, results, limits)
        print_table(console, title, heads, rows)
    title = "Memory: RSS and USS over idle at the peak; PSS of all processes"
    heads = ["", "server", "USS", "client", "USS", "all PSS", "predicted"]
    print_table(console, title, heads, [_memory_cells(each) for each in results])
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
    for line in fold(sentence, console.width):
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
        format_throughput(rate) + (f" at {format_bytes(size)}" if several else "")
        for size, rate in limits.pipe.items()
    )
    memcpy, disk = format_throughput(limits.memcpy), format_throughput(limits.disk)
    return f"This machine: memcpy {memcpy}, disk {disk}, bare pipe {pipe}."


def _seconds_heads(plan: Plan) -> list[str]:
    than = "x pipe" if plan.network is None else "x link"
    return ["", "down", "MiB/s", "up+fold", "MiB/s", "durable", "requests", than, "x disk"]


def _seconds_rows(plan: Plan, results: Sequence[Result], limits: MachineLimits) -> list[list[str]]:
    heads = _seconds_heads(plan)
    rows = []
    for result in results:
        run = result.median
        if run is None:
            rows.append([result.label, *[_NOT_RUN] * (len(heads) - 1)])
            continue
        against = ratios(plan, result.case, run, limits)
        cells = [
            result.label,
            f"{run.download:.2f}",
            _mib_rate(plan.moved_bytes, run.download),
            f"{run.upload_and_fold:.2f}",
            _mib_rate(plan.moved_bytes, run.upload_and_fold),
            f"{run.checkpoint:.2f}",
            f"{run.requests:,.0f}",
            _against(against),
            f"{against.checkpoint_disk:.2f}",
        ]
        rows.append(cells)
    return rows


def _against(against: Ratios) -> str:
    if against.exchange_link is None:
        return f"{against.exchange_pipe:.1f}"
    return f"{against.exchange_link:.2f}"


def _mib_rate(moved: int, seconds: float) -> str:
    rate = moved / seconds / (1 << 20)
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}"


def _memory_cells(result: Result) -> list[str]:
    run, predicted = result.median, format_bytes(result.need.memory)
    if run is None:
        return [result.label, *[_NOT_RUN] * 5, predicted]
    sizes = (
        run.server_peak_rss,
        run.server_peak_uss,
        run.client_peak_rss,
        run.client_peak_uss,
        run.total_peak_pss,
    )
    return [result.label, *(format_bytes(round(size)) for size in sizes), predicted]
