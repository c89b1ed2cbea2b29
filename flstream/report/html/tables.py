"""The tables of a page: what is in their cells, as it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flstream.report.charts.seconds import PHASE_COLORS
from flstream.report.metrics import metrics_of, values_by_round
from flstream.report.record.events import PHASES, SiteRecord
from flstream.report.record.run import RunRecord
from flstream.report.record.settings import Setting
from flstream.report.text import format_metric, format_rate, printable
from flstream.telemetry.events import Transfer
from flstream.telemetry.memory import ProcessMemory
from flstream.units import format_bytes, format_seconds

NOTHING = "\N{EN DASH}"

# So many rows are shown at once; a reader opens the rest.
_MOST_PROCESSES = 9
_MOST_SITES = 12
# Beyond so many more, a page gets slow, and nobody reads them.
_MOST_MORE = 2000


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        cells: the first one says what the row is about.
        mark: a class of the style sheet, for a row that stands out.
        color: of what the row is about, by its name in the charts.
        share: of a whole, 0 to 1, drawn as a bar behind the last cell.
    """

    cells: Sequence[str]
    mark: str = ""
    color: str = ""
    share: float | None = None


class Table(NamedTuple):
    """A table.

    Attributes:
        texts: indices of the columns that are no numbers, beside the first.
    """

    heads: Sequence[str]
    rows: Sequence[Row]
    texts: Sequence[int] = ()


def rounds_table(run: RunRecord) -> Table:
    """Every round: its metrics, and where its seconds went."""
    metrics = metrics_of([run.summary])
    scores = values_by_round(run.summary)
    best = run.summary.best.round if run.summary.best else None
    rows = []
    for each in run.summary.rounds:
        values = [format_metric(scores.get(each.round, {}).get(metric)) for metric in metrics]
        cells = [str(each.round), *values, *(f"{seconds:.2f}" for seconds in each.phases)]
        rows.append(Row(cells, "best" if each.round == best else ""))
    titles = [metric.title for metric in metrics]
    return Table(["round", *titles, *(f"{phase} s" for phase in PHASES)], rows)


def process_tables(run: RunRecord) -> tuple[Table, Table]:
    """Peaks of memory of the server and the largest processes, and of all others."""
    heads = ["process", "idle RSS", "peak RSS", "over idle", "peak USS"]
    memory = run.summary.memory
    rows = [_process_row("server", memory.server)] if memory.server.peak_rss else []
    by_peak = sorted(memory.clients.items(), key=lambda item: -item[1].peak_rss)
    if len(by_peak) <= _MOST_PROCESSES:
        by_peak = list(memory.clients.items())
    rows += [_process_row(name, each) for name, each in by_peak]
    return Table(heads, rows[: _MOST_PROCESSES + 1]), Table(heads, rows[_MOST_PROCESSES + 1 :])


def _process_row(name: str, memory: ProcessMemory) -> Row:
    sizes = (memory.idle_rss, memory.peak_rss, memory.over_idle, memory.peak_uss)
    # Zero says that it was never seen: the process did not come that far.
    return Row([printable(name), *(format_bytes(size) if size else NOTHING for size in sizes)])


def phase_seconds(run: RunRecord) -> dict[str, float]:
    """Seconds of each phase over all rounds, and what is left of the run, under ``the rest``."""
    phases = [each.phases for each in run.summary.rounds]
    found = {phase: sum(each[place] for each in phases) for place, phase in enumerate(PHASES)}
    return {**found, "the rest": max(run.seconds - sum(found.values()), 0.0)}


def totals_table(run: RunRecord) -> Table:
    """Seconds of the whole run by phase, with their share of it."""
    spent = phase_seconds(run)
    whole = sum(spent.values()) or 1.0
    rows = [
        Row(
            [
                "start-up, and between the phases" if phase == "the rest" else phase,
                f"{seconds:,.2f}",
                f"{seconds / whole:.0%}",
            ],
            color=PHASE_COLORS.get(phase, "faint"),
            share=seconds / whole,
        )
        for phase, seconds in spent.items()
    ]
    return Table(["", "seconds", "share"], rows)


def transfer_table(run: RunRecord) -> Table:
    """What moving models cost, each way; no rows if nothing was moved."""
    transfer = run.summary.transfer
    ways = {"down, to the sites": transfer.down, "up, to the server": transfer.up}
    most = max(way.bytes for way in ways.values())
    rows = [_transfer_row(name, way, most) for name, way in ways.items()] if most else []
    heads = ["", "requests", "chunks", "retries", "seconds", "rate", "bytes"]
    return Table(heads, rows)


def _transfer_row(name: str, way: Transfer, most: int) -> Row:
    counts = [f"{count:,}" for count in (way.requests, way.chunks, way.retries)]
    rate = format_rate(way.bytes / way.seconds) if way.seconds else NOTHING
    cells = [name, *counts, f"{way.seconds:,.2f}", rate, format_bytes(way.bytes)]
    return Row(cells, share=way.bytes / most)


def site_tables(run: RunRecord) -> tuple[Table, Table]:
    """The failed and the slowest sites, and the rest in that order, as far as anyone would read."""
    sites = sorted(run.events.sites.values(), key=_urgency)
    whole = sum(site.weight for site in sites) or 1.0
    is_timed = any(site.trains for site in sites)
    rows = [_site_row(site, whole, is_timed) for site in sites[: _MOST_SITES + _MOST_MORE]]
    timed = ["train s", "slowest s", "download s"] if is_timed else []
    heads = ["site", "updates", *timed, "failures", "weight", "share"]
    return Table(heads, rows[:_MOST_SITES]), Table(heads, rows[_MOST_SITES:])


def failure_tables(run: RunRecord) -> tuple[Table, Table]:
    """Why sites failed: those that did so most, and the rest in that order."""
    failed = sorted((s for s in run.events.sites.values() if s.failures), key=_urgency)
    rows = [
        Row([_site_name(site), f"{site.failures:,}", printable(site.reason)])
        for site in failed[: _MOST_SITES + _MOST_MORE]
    ]
    heads, texts = ["site", "rounds failed", "why, the last time"], (2,)
    return Table(heads, rows[:_MOST_SITES], texts), Table(heads, rows[_MOST_SITES:], texts)


def _urgency(site: SiteRecord) -> tuple[bool, int, float, int, str]:
    # Of two that did alike, site-2 comes before site-10.
    return not site.is_benched, -site.failures, -site.slowest, len(site.name), site.name


def _site_row(site: SiteRecord, whole: float, is_timed: bool) -> Row:
    times = [site.trains, site.slowest, site.downloads] if is_timed else []
    share = site.weight / whole
    return Row(
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
    return printable(site.name) + (" (asked no more)" if site.is_benched else "")


def setting_tables(settings: Sequence[Setting]) -> tuple[Table, Table]:
    """What the job sets, and what it leaves at its default."""
    heads, texts = ["key", "value", "meaning"], (1, 2)
    chosen = [_setting_row(each) for each in settings if not each.is_default]
    rest = [_setting_row(each) for each in settings if each.is_default]
    return Table(heads, chosen, texts), Table(heads, rest, texts)


def _setting_row(setting: Setting) -> Row:
    return Row([setting.key, setting.value, setting.meaning])


def duration(seconds: float) -> str:
    """Seconds for people, a dash for none."""
    return format_seconds(seconds) if seconds else NOTHING
