"""Table of the live view: a row for each site, or for each worker that sites share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from flstream.report.live.progress import slow_sites, slow_workers
from flstream.report.live.site_state import (
    GONE,
    MOVING,
    WORKING,
    Memory,
    RecentFailure,
    SiteProgress,
)
from flstream.report.live.state import RunState
from flstream.report.live.table import LiveColumn, bar, columns_that_fit, fixed_table, percent
from flstream.report.text import format_elapsed, format_metrics, steady_bytes
from flstream.telemetry.events import WorkerActivity
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

_Cells = dict[str, RenderableType]
"""Cells of a row, by the keys of their columns."""


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


def site_tables(
    state: RunState, memory: Memory, now: float, width: int, room: int
) -> list[RenderableType]:
    """Create the tables of sites or workers: headings, failures, the others, how many are left out.

    Args:
        state: state of the run.
        memory: memory of the run's processes.
        now: current time in seconds since the epoch.
        width: columns of the terminal.
        room: maximum number of lines.

    Returns:
        The tables, one below the other; nothing if they would have no rows.
    """
    if room < 2:
        return []
    make = _worker_tables if state.is_shared else _site_tables
    return make(state, memory, now, width, room)


def _columns(
    first: str, names: Iterable[str], width: int, nodes: Mapping[str, str], *, shared: bool
) -> list[LiveColumn]:
    """Return the columns that fit the width, of which the first has the names."""
    # At least as wide as the labels of the bars above, so that the columns are aligned with them.
    named = min(max(_widest(names), 7), max(width - 65, 7))
    columns = [
        LiveColumn("name", first, named, 0, is_number=False),
        LiveColumn("state", "state", 11, 1, is_number=False),
        LiveColumn("sites", "sites", 20, 2, is_number=False, most=30),
        LiveColumn("node", "node", min(_widest(nodes.values()), 20), 3, is_number=False),
        LiveColumn("activity", "", 12, 3, is_number=False, most=30 if shared else 100),
        LiveColumn("percent", "", 4, 7),
        LiveColumn("time", "time", 9, 2 if shared else 8),
        LiveColumn("rate", "rate", 12, 9),
        LiveColumn("down", "down", 10, 5),
        LiveColumn("up", "up", 10, 6),
        LiveColumn("weight", "weight", 9, 11),
        LiveColumn("rss", "RSS", 10, 4),
        LiveColumn("peak", "peak RSS", 10, 10),
    ]
    absent = {"up", "weight"} if shared else {"sites"}
    if not nodes:
        absent.add("node")
    there = [column for column in columns if column.key not in absent]
    return columns_that_fit(there, width)


def _widest(names: Iterable[str]) -> int:
    return max((cell_len(printable(name)) for name in names), default=0)


def _stacked(
    columns: Sequence[LiveColumn], failed: Sequence[_Cells], rows: Sequence[_Cells], width: int
) -> list[RenderableType]:
    """Return the headings, the failures with their reasons, and the other rows."""
    name, state, *_ = columns
    reason = LiveColumn(
        "reason", "", max(width - name.width - state.width - 2, 1), 0, is_number=False
    )
    tables = (
        fixed_table(columns, ()),
        fixed_table([name, state, reason], failed, has_head=False),
        fixed_table(columns, rows, has_head=False),
    )
    return [table for table in tables if table.row_count or table.show_header]


def _failure_cells(name: str, state: str, failure: RecentFailure) -> _Cells:
    reason = printable(failure.reason)
    if failure.round:
        reason = f"round {failure.round}: {reason}"
    return {
        "name": printable(name),
        "state": _state(state),
        "reason": Text(reason, style="red", overflow="ellipsis"),
    }


def _site_tables(
    state: RunState, memory: Memory, now: float, width: int, room: int
) -> list[RenderableType]:
    sites, slow = list(state.sites.values()), slow_sites(state, now)
    shown, hidden = choose(sites, slow, room - 1)
    if hidden:
        shown, hidden = choose(sites, slow, room - 2)
    if not shown:
        return []
    columns = _columns("site", state.sites, width, memory.nodes, shared=False)
    widths = {column.key: column.width for column in columns}
    failed, rows = [], []
    for site in shown:
        failure = state.failures.get(site.name)
        if site.state in GONE and failure is not None:
            failed.append(_failure_cells(site.name, site.state, failure))
        else:
            is_slow = site.name in slow
            rows.append(_site_cells(site, state, now, widths, is_slow) | _sizes(site.name, memory))
    parts = _stacked(columns, failed, rows, width)
    if hidden:
        parts.append(Text(f"... and {hidden:,} more", style="dim"))
    return parts


def _site_cells(
    site: SiteProgress, state: RunState, now: float, widths: Mapping[str, int], is_slow: bool
) -> _Cells:
    cells: _Cells = {
        "name": printable(site.name),
        "state": _state(site.state),
        "down": _size(site.down),
        "up": _size(site.up),
        "weight": "-" if site.weight is None else f"{site.weight:,.6g}",
    }
    seconds = now - site.since
    elapsed = format_elapsed(seconds)
    if site.state in MOVING | WORKING:
        cells["time"] = _time(elapsed, is_slow=is_slow)
    if site.state in MOVING:
        cells |= _transfer(site.state, site.moved, state.model_bytes, seconds)
    elif site.state in WORKING and "time" not in widths:
        cells["activity"] = Text(f"for {elapsed}", style="dim")
    elif site.state in WORKING or site.state == "ready":
        metrics = format_metrics(site.latest_metrics, widths.get("activity", 0))
        cells["activity"] = Text(metrics, style="dim")
    return cells


def _worker_tables(
    state: RunState, memory: Memory, now: float, width: int, room: int
) -> list[RenderableType]:
    # At least half of the lines are for workers, the rest for sites that failed.
    slow = slow_workers(state, now)
    most = max((room - 1) // 2, room - 2 - len(state.failures))
    workers = _slow_first(state.workers, slow, most)
    spare = room - 1 - len(workers)
    failures = list(islice(reversed(state.failures.items()), spare))
    hidden = len(state.failures) - len(failures)
    if hidden:
        failures = failures[: spare - 1]
        hidden = len(state.failures) - len(failures)
    failed = [
        _failure_cells(name, "benched" if failure.benched else "failed", failure)
        for name, failure in failures
    ]
    rows = [
        _worker_cells(name, work, state, now, name in slow) | _sizes(name, memory)
        for name, work in workers
    ]
    columns = _columns("worker", state.workers, width, memory.nodes, shared=True)
    head, *parts = _stacked(columns, failed, rows, width)
    if hidden and len(failed) + len(rows) + 1 < room:
        more = Text(f"... and {hidden:,} more sites that failed", style="dim")
        parts.insert(1 if failed else 0, more)
    return [head, *parts] if parts else []


def _slow_first(
    workers: Mapping[str, WorkerActivity | None], slow: Collection[str], room: int
) -> list[tuple[str, WorkerActivity | None]]:
    """Select workers: slow ones first, the others in order, or longest-running if not all fit."""
    rows = list(workers.items())
    if len(rows) > room:
        rows.sort(key=lambda row: row[1].since if row[1] is not None else float("inf"))
    rows.sort(key=lambda row: row[0] not in slow)
    return rows[: max(room, 0)]


def _worker_cells(
    name: str, work: WorkerActivity | None, state: RunState, now: float, is_slow: bool
) -> _Cells:
    if work is None:
        # In quick rounds there are no events about the activity of each worker.
        is_busy = state.is_quick or (state.phase in WORKING and not state.has_activity)
        doing = "at work" if is_busy else "idle" if name in state.started else "starting"
        return {"name": printable(name), "state": _state(doing)}
    place = f", {work.over + 1:,} of {work.sites:,}" if work.sites > 1 else ""
    seconds = now - work.since
    cells: _Cells = {
        "name": printable(name),
        "state": _state(work.state),
        "sites": f"{printable(work.site)}{place}",
        "time": _time(format_elapsed(seconds), is_slow=is_slow),
        "down": _size(work.down),
    }
    if work.state == "downloading":
        cells |= _transfer(work.state, work.down, state.model_bytes, seconds)
    return cells


def _state(name: str) -> Text:
    return Text(name, style=STYLES.get(name, "dim"))


def _transfer(state: str, moved: int, size: int, seconds: float) -> _Cells:
    # Too early, it would be the rate of a single burst.
    rate = f"{steady_bytes(round(moved / seconds))}/s" if moved and seconds >= 0.2 else ""
    return {
        "activity": bar(moved, size, STYLES[state]),
        "percent": percent(moved, size),
        "rate": rate,
    }


def _time(elapsed: str, *, is_slow: bool) -> Text:
    return Text(elapsed, style="bold yellow" if is_slow else "")


def _sizes(name: str, memory: Memory) -> _Cells:
    return {
        "rss": _size(memory.rss.get(name, 0)),
        "peak": _size(memory.peak_rss.get(name, 0)),
        "node": printable(memory.nodes.get(name, "")),
    }


def _size(count: int) -> str:
    return steady_bytes(count) if count else "-"
