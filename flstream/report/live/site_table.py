"""Table of the live view: a row for each site, or for each worker that sites share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from rich.text import Text

from flstream.report.live.bar import bar, percent
from flstream.report.live.fixed_table import Column, FixedRow, columns_that_fit, table_lines, widest
from flstream.report.live.progress import slow_sites, slow_workers
from flstream.report.live.site_state import GONE, MOVING, WORKING, SiteProgress
from flstream.report.live.state import RunState
from flstream.report.text import format_elapsed, format_metrics, steady_bytes
from flstream.telemetry.events import WorkerActivity
from flstream.telemetry.memory import MemorySampler
from flstream.text import printable

STYLES = {
    "failed": "bold red",
    "benched": "red",
    "downloading": "cyan",
    "uploading": "magenta",
    "training": "yellow",
    "evaluating": "blue",
    "submitting": "magenta",
    "at work": "yellow",
    "ready": "green",
}
# Order of the sites after the failed and the slow ones, where not all can be shown.
_URGENCY = (
    *("uploading", "submitting", "training", "evaluating", "downloading", "starting"),
    *("ready", "benched", "idle"),
)
_RANKS = {state: rank for rank, state in enumerate(_URGENCY)}


@dataclass(frozen=True)
class Memory:
    """Memory of a run's processes, in bytes.

    Attributes:
        rss: current RSS of each process, by name.
        peak_rss: peak RSS of each process so far, by name.
        peak_total: peak sum over all processes so far, with shared pages counted once.
        nodes: node of each process that is not on this machine, by name of the process.
    """

    rss: Mapping[str, int] = field(default_factory=dict)
    peak_rss: Mapping[str, int] = field(default_factory=dict)
    peak_total: int = 0
    nodes: Mapping[str, str] = field(default_factory=dict)


def memory_now(sampler: MemorySampler) -> Memory:
    """Return the memory of the processes that a sampler watches."""
    peaks = sampler.peaks()
    return Memory(
        sampler.current_rss(),
        {name: memory.peak_rss for name, memory in peaks.items()},
        sampler.peak_total_pss,
        {name: memory.node for name, memory in peaks.items() if isinstance(memory.node, str)},
    )


def choose(
    sites: Sequence[SiteProgress], slow: Collection[str], room: int
) -> tuple[list[SiteProgress], int]:
    """Select the sites to show.

    Failed sites come first, then slow ones. The others keep their order if all fit; otherwise those
    with a task come first, by how long they have been at it.

    Args:
        sites: all sites.
        slow: names of the slow sites.
        room: maximum number of sites to show.

    Returns:
        The sites to show, and the number of those that are left out.
    """
    fit = len(sites) <= room

    def urgency(site: SiteProgress) -> tuple[int, int, float]:
        top = 0 if site.state == "failed" else 1 if site.name in slow else 2
        return (top, 0, 0.0) if fit else (top, _RANKS.get(site.state, 0), site.since)

    return sorted(sites, key=urgency)[:room], max(len(sites) - room, 0)


def row_lines(
    state: RunState, memory: Memory, now: float, width: int, room: int, *, ascii_only: bool
) -> list[Text]:
    """Format the table of sites or workers.

    Args:
        state: state of the run.
        memory: memory of the run's processes.
        now: current time in seconds since the epoch.
        width: columns of the terminal.
        room: maximum number of lines.
        ascii_only: whether to use ASCII characters only.

    Returns:
        The lines of the table; nothing if it would have no rows.
    """
    if room < 2:
        return []
    if state.is_shared:
        lines = _worker_lines(state, memory, now, width, room, ascii_only)
    else:
        lines = _site_lines(state, memory, now, width, room, ascii_only)
    return lines if len(lines) > 1 else []


def _columns(
    first: str, names: int, width: int, nodes: Mapping[str, str], *, shared: bool
) -> list[Column]:
    # At least as wide as the labels of the bars above, so that the columns are aligned with them.
    named = min(max(names, 7), max(width - 65, 7))
    columns = [
        Column(first, first, named, 0, is_number=False),
        Column("state", "state", 11, 1, is_number=False),
        Column("sites", "sites", 20, 2, is_number=False, most=30),
        Column("node", "node", min(widest(nodes.values()), 20), 3, is_number=False),
        Column("activity", "", 12, 3, is_number=False, most=30 if shared else 100),
        Column("percent", "", 4, 7),
        Column("time", "time", 9, 2 if shared else 8),
        Column("rate", "rate", 12, 9),
        Column("down", "down", 10, 5),
        Column("up", "up", 10, 6),
        Column("weight", "weight", 9, 11),
        Column("rss", "RSS", 10, 4),
        Column("peak", "peak RSS", 10, 10),
    ]
    absent = {"up", "weight"} if shared else {"sites"}
    if not nodes:
        absent.add("node")
    return [column for column in columns if column.key not in absent]


def _site_lines(
    state: RunState, memory: Memory, now: float, width: int, room: int, ascii_only: bool
) -> list[Text]:
    sites, slow = list(state.sites.values()), slow_sites(state, now)
    shown, hidden = choose(sites, slow, room - 1)
    if hidden:
        shown, hidden = choose(sites, slow, room - 2)
    named = _columns("site", widest(state.sites), width, memory.nodes, shared=False)
    columns = columns_that_fit(named, width)
    kinds = {column.key: column.width for column in columns}
    rows = [
        _site_row(site, state, memory, now, kinds, ascii_only, is_slow=site.name in slow)
        for site in shown
    ]
    lines = table_lines(columns, rows, width)
    if hidden:
        lines.append(Text(f"... and {hidden:,} more", style="dim"))
    return lines


def _site_row(
    site: SiteProgress,
    state: RunState,
    memory: Memory,
    now: float,
    widths: Mapping[str, int],
    ascii_only: bool,
    *,
    is_slow: bool,
) -> FixedRow:
    cells: dict[str, str | Text] = {
        "site": printable(site.name),
        "state": Text(site.state, style=STYLES.get(site.state, "dim")),
        "down": _size(site.down),
        "up": _size(site.up),
        "weight": "-" if site.weight is None else f"{site.weight:,.6g}",
        **_memory_cells(site.name, memory),
    }
    failure = state.failures.get(site.name)
    if site.state in GONE and failure is not None:
        return FixedRow(cells, _reason(failure.round, failure.reason), "red")
    elapsed = format_elapsed(now - site.since)
    if site.state in MOVING | WORKING:
        cells["time"] = _time(elapsed, is_slow=is_slow)
    wide = widths.get("activity", 0)
    if site.state in MOVING:
        style = STYLES[site.state]
        size = state.model_bytes
        cells["activity"] = bar(site.moved, size, wide, style=style, ascii_only=ascii_only)
        cells["percent"] = percent(site.moved, size)
        cells["rate"] = _rate(site.moved, now - site.since)
    elif site.state in WORKING and "time" not in widths:
        cells["activity"] = Text(f"for {elapsed}", style="dim")
    elif site.state in WORKING or site.state == "ready":
        cells["activity"] = Text(format_metrics(site.latest_metrics, wide), style="dim")
    return FixedRow(cells)


def _worker_lines(
    state: RunState, memory: Memory, now: float, width: int, room: int, ascii_only: bool
) -> list[Text]:
    # At least half of the lines are for workers, the rest for sites that failed.
    slow = slow_workers(state, now)
    most = max((room - 1) // 2, room - 2 - len(state.failures))
    workers = _slow_first(state.workers, slow, most)
    spare = room - 1 - len(workers)
    failed = list(islice(reversed(state.failures.items()), spare))
    if len(failed) < len(state.failures):
        failed = failed[: spare - 1]
    named = _columns("worker", widest(state.workers), width, memory.nodes, shared=True)
    columns = columns_that_fit(named, width)
    wide = next((each.width for each in columns if each.key == "activity"), 0)
    rows = []
    for name, failure in failed:
        gone = "benched" if failure.benched else "failed"
        cells: dict[str, str | Text] = {
            "worker": printable(name),
            "state": Text(gone, style=STYLES[gone]),
        }
        rows.append(FixedRow(cells, _reason(failure.round, failure.reason), "red"))
    rows += [
        _worker_row(name, work, state, memory, now, wide, ascii_only, is_slow=name in slow)
        for name, work in workers
    ]
    lines = table_lines(columns, rows, width)
    hidden = len(state.failures) - len(failed)
    if hidden and len(lines) < room:
        more = f"... and {hidden:,} more sites that failed"
        lines.insert(1 + len(failed), Text(more, style="dim"))
    return lines


def _slow_first(
    workers: Mapping[str, WorkerActivity | None], slow: Collection[str], room: int
) -> list[tuple[str, WorkerActivity | None]]:
    """Select workers: slow ones first, the others in order, or longest-running if not all fit."""
    rows = list(workers.items())
    if len(rows) > room:
        rows.sort(key=lambda row: row[1].since if row[1] is not None else float("inf"))
    rows.sort(key=lambda row: row[0] not in slow)
    return rows[: max(room, 0)]


def _worker_row(
    name: str,
    work: WorkerActivity | None,
    state: RunState,
    memory: Memory,
    now: float,
    wide: int,
    ascii_only: bool,
    *,
    is_slow: bool,
) -> FixedRow:
    cells: dict[str, str | Text] = {"worker": name, **_memory_cells(name, memory)}
    if work is None:
        # In quick rounds there are no events about the activity of each worker.
        is_busy = state.is_quick or (state.phase in WORKING and not state.has_activity)
        doing = "at work" if is_busy else "idle" if name in state.started else "starting"
        cells["state"] = Text(doing, style=STYLES.get(doing, "dim"))
        return FixedRow(cells)
    place = f", {work.over + 1:,} of {work.sites:,}" if work.sites > 1 else ""
    elapsed = now - work.since
    cells |= {
        "state": Text(work.state, style=STYLES[work.state]),
        "sites": f"{printable(work.site)}{place}",
        "time": _time(format_elapsed(elapsed), is_slow=is_slow),
        "down": _size(work.down),
    }
    if work.state == "downloading":
        size = state.model_bytes
        cells["activity"] = bar(
            work.down, size, wide, style=STYLES[work.state], ascii_only=ascii_only
        )
        cells["percent"] = percent(work.down, size)
        cells["rate"] = _rate(work.down, elapsed)
    return FixedRow(cells)


def _time(elapsed: str, *, is_slow: bool) -> Text:
    return Text(elapsed, style="bold yellow" if is_slow else "")


def _memory_cells(name: str, memory: Memory) -> dict[str, str]:
    return {
        "rss": _size(memory.rss.get(name, 0)),
        "peak": _size(memory.peak_rss.get(name, 0)),
        "node": printable(memory.nodes.get(name, "")),
    }


def _reason(round_number: int, reason: str) -> str:
    return printable(f"round {round_number}: {reason}" if round_number else reason)


def _rate(count: int, seconds: float) -> str:
    # Too early, it would be the rate of a single burst.
    return f"{steady_bytes(round(count / seconds))}/s" if count and seconds >= 0.2 else ""


def _size(count: int) -> str:
    return steady_bytes(count) if count else "-"
