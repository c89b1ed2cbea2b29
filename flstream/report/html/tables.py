"""The tables of the page of a run, with formatted cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import UNSET

from flstream.report.charts.seconds import PHASE_COLORS
from flstream.report.charts.style import FAINT
from flstream.report.metrics import metrics_of, values_by_round
from flstream.report.record.run import RunRecord
from flstream.report.record.settings import Setting
from flstream.report.text import format_epsilon, format_metric, format_throughput
from flstream.runs.round_record import PHASES
from flstream.runs.site_record import SiteRecord
from flstream.telemetry.events import PrivacySpent, Transfer
from flstream.telemetry.memory import ProcessMemory
from flstream.text import natural_key, printable
from flstream.units import format_bytes, format_seconds

NOTHING = "\N{EN DASH}"

# Rows that are shown at once; the rest is in a second table that is opened by a click.
_MOST_PROCESSES = 9
_MOST_SITES = 12
# Maximum number of rows in the second table; more make a page slow.
_MOST_MORE = 2000
# Workers of a node that are named.
_MOST_NAMED = 8


_PRIVACY_HEADS = ("epsilon", "clipping norm", "clipped")


class PageRow(NamedTuple):
    """A row of a table.

    Attributes:
        cells: formatted cells, the first of which is the row's name.
        mark: class of the style sheet for a highlighted row; empty for none.
        color: hexadecimal colour of the row in the charts; empty for none.
        share: share of a whole from 0 to 1, drawn as a bar behind the last cell; None for none.
    """

    cells: Sequence[str]
    mark: str = ""
    color: str = ""
    share: float | None = None


class PageTable(NamedTuple):
    """A table.

    Attributes:
        heads: heading of each column.
        rows: rows of the table.
        texts: indices of the columns with text instead of numbers, beside the first.
    """

    heads: Sequence[str]
    rows: Sequence[PageRow]
    texts: Sequence[int] = ()


def rounds_table(run: RunRecord) -> PageTable:
    """Return the table of all rounds, with metrics and seconds of each phase."""
    metrics = metrics_of([run.summary])
    scores = values_by_round(run.summary)
    best = run.summary.best.round if run.summary.best else None
    privacy = _PRIVACY_HEADS if run.summary.privacy else ()
    folded_at = ["folded at"] if any(each.aggregator for each in run.summary.rounds) else []
    rows = []
    if 0 in scores:
        values = [format_metric(scores[0].get(metric)) for metric in metrics]
        rows.append(
            PageRow(
                ["0", *values, *(NOTHING for _ in [*privacy, *PHASES, *folded_at])],
                "best" if best == 0 else "",
            )
        )
    for each in run.summary.rounds:
        values = [format_metric(scores.get(each.round, {}).get(metric)) for metric in metrics]
        spent = _privacy_cells(each.privacy) if privacy else []
        cells = [str(each.round), *values, *spent, *(f"{seconds:.2f}" for seconds in each.phases)]
        cells += [printable(each.aggregator) or "server" for _ in folded_at]
        rows.append(PageRow(cells, "best" if each.round == best else ""))
    titles = [metric.title for metric in metrics]
    phases = [f"{phase} s" for phase in PHASES]
    return PageTable(["round", *titles, *privacy, *phases, *folded_at], rows)


def _privacy_cells(spent: PrivacySpent | None) -> list[str]:
    if spent is None:
        return [NOTHING] * len(_PRIVACY_HEADS)
    return [format_epsilon(spent), f"{spent.clip_norm:.4g}", f"{spent.clipped:.0%}"]


def process_tables(run: RunRecord) -> tuple[PageTable, PageTable]:
    """Return the tables of memory of processes: the server and the largest, and all others."""
    heads = ["process", "idle RSS", "peak RSS", "over idle", "peak USS"]
    memory = run.summary.memory
    has_nodes = any(each.node is not UNSET for each in memory.clients.values())
    if has_nodes:
        heads.append("node")
    here = _process_row("server", memory.server, has_nodes=has_nodes)
    rows = [here] if memory.server.peak_rss else []
    by_peak = sorted(memory.clients.items(), key=lambda item: -item[1].peak_rss)
    if len(by_peak) <= _MOST_PROCESSES:
        by_peak = list(memory.clients.items())
    rows += [_process_row(name, each, has_nodes=has_nodes) for name, each in by_peak]
    texts = [5] if has_nodes else []
    first, others = rows[: _MOST_PROCESSES + 1], rows[_MOST_PROCESSES + 1 :]
    return PageTable(heads, first, texts), PageTable(heads, others, texts)


def nodes_table(run: RunRecord) -> PageTable:
    """Return the table of the nodes; it has no rows if all processes were on one machine."""
    memory = run.summary.memory
    rows = []
    for node, pss in sorted((memory.nodes or {}).items(), key=lambda item: natural_key(item[0])):
        workers = [name for name, each in memory.clients.items() if each.node == node]
        largest = max((memory.clients[name].over_idle for name in workers), default=0)
        names = ", ".join(map(printable, workers[:_MOST_NAMED])) or NOTHING
        if len(workers) > _MOST_NAMED:
            names += f" and {len(workers) - _MOST_NAMED:,} more"
        sizes = [format_bytes(size) if size else NOTHING for size in (pss, largest)]
        rows.append(PageRow([printable(node), *sizes, names]))
    heads = ["node", "all processes (PSS)", "largest over idle", "workers that it had last"]
    return PageTable(heads, rows, texts=(0, 3))


def _process_row(name: str, memory: ProcessMemory, *, has_nodes: bool) -> PageRow:
    sizes = (memory.idle_rss, memory.peak_rss, memory.over_idle, memory.peak_uss)
    # Zero stands for no measurement: the process ended before it.
    cells = [format_bytes(size) if size else NOTHING for size in sizes]
    if has_nodes:
        cells.append(printable(memory.node) if isinstance(memory.node, str) else NOTHING)
    return PageRow([printable(name), *cells])


def phase_seconds(run: RunRecord) -> dict[str, float]:
    """Return the seconds of each phase over all rounds, and the remainder as ``the rest``."""
    phases = [each.phases for each in run.summary.rounds]
    found = {phase: sum(each[place] for each in phases) for place, phase in enumerate(PHASES)}
    return {**found, "the rest": max(run.seconds - sum(found.values()), 0.0)}


def totals_table(run: RunRecord) -> PageTable:
    """Return the table of a run's seconds by phase, with their shares."""
    spent = phase_seconds(run)
    whole = sum(spent.values()) or 1.0
    rows = [
        PageRow(
            [
                "start-up, and between the phases" if phase == "the rest" else phase,
                f"{seconds:,.2f}",
                f"{seconds / whole:.0%}",
            ],
            color=PHASE_COLORS.get(phase, FAINT),
            share=seconds / whole,
        )
        for phase, seconds in spent.items()
    ]
    return PageTable(["", "seconds", "share"], rows)


def transfer_table(run: RunRecord) -> PageTable:
    """Return the table of transfers in each direction; it has no rows if nothing was moved."""
    transfer = run.summary.transfer
    ways = {"down, to the sites": transfer.down, "up, to the server": transfer.up}
    most = max(way.bytes for way in ways.values())
    rows = [_transfer_row(name, way, most) for name, way in ways.items()] if most else []
    heads = ["", "requests", "chunks", "retries", "seconds", "rate", "bytes"]
    return PageTable(heads, rows)


def _transfer_row(name: str, way: Transfer, most: int) -> PageRow:
    counts = [f"{count:,}" for count in (way.requests, way.chunks, way.retries)]
    rate = format_throughput(way.bytes / way.seconds) if way.seconds else NOTHING
    cells = [name, *counts, f"{way.seconds:,.2f}", rate, format_bytes(way.bytes)]
    return PageRow(cells, share=way.bytes / most)


def site_tables(run: RunRecord) -> tuple[PageTable, PageTable]:
    """Return the tables of sites: those that failed most or were slowest first, and the rest."""
    sites = sorted(run.sites.values(), key=_urgency)
    whole = sum(site.weight for site in sites) or 1.0
    is_timed = any(site.trains for site in sites)
    rows = [_site_row(site, whole, is_timed) for site in sites[: _MOST_SITES + _MOST_MORE]]
    timed = ["train s", "slowest s", "download s"] if is_timed else []
    heads = ["site", "updates", *timed, "failures", "weight", "share"]
    return PageTable(heads, rows[:_MOST_SITES]), PageTable(heads, rows[_MOST_SITES:])


def failure_tables(run: RunRecord) -> tuple[PageTable, PageTable]:
    """Return the tables of failed sites with reasons: those that failed most, and the rest."""
    failed = sorted((s for s in run.sites.values() if s.failures), key=_urgency)
    rows = [
        PageRow([_site_name(site), f"{site.failures:,}", printable(site.reason)])
        for site in failed[: _MOST_SITES + _MOST_MORE]
    ]
    heads, texts = ["site", "rounds failed", "why, the last time"], (2,)
    return PageTable(heads, rows[:_MOST_SITES], texts), PageTable(heads, rows[_MOST_SITES:], texts)


def _urgency(site: SiteRecord) -> tuple[bool, int, float, int, str]:
    # The length of the name puts site-2 before site-10.
    return not site.is_suspended, -site.failures, -site.slowest, len(site.name), site.name


def _site_row(site: SiteRecord, whole: float, is_timed: bool) -> PageRow:
    times = [site.trains, site.slowest, site.downloads] if is_timed else []
    share = site.weight / whole
    return PageRow(
        [
            printable(site.name),
            f"{site.updates:,}",
            *(f"{seconds:.2f}" if seconds else NOTHING for seconds in times),
            f"{site.failures:,}",
            f"{site.weight:,.6g}",
            f"{share:.1%}",
        ],
        mark="bad" if site.failures else "",
        share=share,
    )


def _site_name(site: SiteRecord) -> str:
    return printable(site.name) + (" (asked no more)" if site.is_suspended else "")


def setting_tables(settings: Sequence[Setting]) -> tuple[PageTable, PageTable]:
    """Return the tables of settings: those that the job sets, and those at their default."""
    heads, texts = ["key", "value", "meaning"], (1, 2)
    chosen = [_setting_row(each) for each in settings if not each.is_default]
    rest = [_setting_row(each) for each in settings if each.is_default]
    return PageTable(heads, chosen, texts), PageTable(heads, rest, texts)


def _setting_row(setting: Setting) -> PageRow:
    return PageRow([setting.key, setting.value, setting.meaning])


def duration(seconds: float) -> str:
    """Format a duration in seconds, 0 as a dash."""
    return format_seconds(seconds) if seconds else NOTHING
