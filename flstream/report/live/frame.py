"""A frame of the live view of a run, for a terminal of any size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from flstream.report.live.snapshot import MOVING, WORKING, Activity, Snapshot
from flstream.report.metrics import order_metrics
from flstream.report.table import Cell, Column, Gap, Row, Table
from flstream.report.text import (
    clip,
    counted,
    elide,
    format_elapsed,
    format_left,
    format_metrics,
    pieces,
)
from flstream.report.views import rounds_table
from flstream.telemetry.events import SERVER, RunStarted
from flstream.telemetry.memory import ProcessMemory
from flstream.text import printable
from flstream.units import format_bytes, format_rate

# Lines of a terminal below which only the title, the bars, the workers and the rates are shown.
_ROOMY = 15
_LABEL, _LEAST_NAME, _LEAST_PAST = 8, 8, 2
# Columns beside a bar, and those of a terminal on which there are more of them.
_BESIDE, _BESIDE_WIDE, _WIDE = 28, 40, 100


class LiveMemory(NamedTuple):
    """Present RSS and peaks of each process in bytes, and the peak of all at one time."""

    rss: Mapping[str, int] = MappingProxyType({})
    peaks: Mapping[str, ProcessMemory] = MappingProxyType({})
    peak_total: int = 0


def render(
    run: Snapshot,
    memory: LiveMemory,
    now: float,
    width: int,
    height: int,
) -> Group:
    """Render a frame of the live view.

    Args:
        run: the run.
        memory: memory of its processes.
        now: current time in seconds since the epoch.
        width: columns of the terminal.
        height: lines of the terminal.

    Returns:
        Texts of a line each and tables, which fit a terminal of at least five lines.
    """
    start = run.start
    if start is None:
        elapsed = format_elapsed(now - run.began)
        return Group(Text(clip(f"flstream  {printable(run.phase)}  {elapsed}", width)))
    roomy = height >= _ROOMY
    top: list[Text | Table] = [_title(run, start, now, width)]
    top += [_facts(run, start, width), Text()] if roomy else []
    top.append(_bars(run, start.rounds, now, width))
    bottom = _footer(run, memory, now, width)
    bottom = [Text(), *bottom] if roomy else bottom[:1]
    room = height - _lines([*top, *bottom]) - roomy
    workers = _workers(run, memory, now, room)
    if workers.rows:
        top += [*([Text()] if roomy else []), workers]
    past = height - _lines([*top, *bottom]) - 2
    if past >= _LEAST_PAST and run.rounds:
        shown = list(run.rounds)[-past:]
        metrics = order_metrics(metric for row in shown for metric in row.metrics)
        table = rounds_table(shown, metrics, None)
        top += [Text(), Table(table.columns, table.rows, is_live=True)]
    return Group(*top, *bottom)


def _lines(parts: Sequence[Text | Table]) -> int:
    return sum(len(p.rows) + p.has_head if isinstance(p, Table) else 1 for p in parts)


def _title(run: Snapshot, start: RunStarted, now: float, width: int) -> Text:
    where = f"round {run.round} of {start.rounds}" if run.round else counted(start.rounds, "round")
    phase = printable("training" if run.is_quick else run.phase)
    times = format_elapsed(now - run.began)
    left = run.seconds_left(now)
    beside = len(f"  {where}  {phase}  ")
    name = printable(start.job)
    if left is not None and left >= 1:
        longer = f"{times}, about {format_left(left)} left"
        fits = beside + min(cell_len(name), _LEAST_NAME) + len(longer) <= width
        times = longer if fits else times
    name = elide(name, max(width - beside - len(times), _LEAST_NAME))
    title = Text.assemble((name, "bold"), f"  {where}  ", (phase, "bold cyan"))
    # Aligned right, so that it does not move when the phase changes.
    gap = max(width - title.cell_len - len(times), 2)
    return title.append(" " * gap).append(times, "dim")


def _facts(run: Snapshot, start: RunStarted, width: int) -> Text:
    sites = counted(start.clients, "site")
    sites += f" in {counted(len(start.workers), 'process')}" if start.workers else ""
    facts = [sites, f"{start.mode} mode", pieces(start.chunk_size)]
    if run.model is not None:
        tensors = counted(run.model.tensors, "tensor")
        facts.insert(0, f"model of {format_bytes(run.model.bytes)} in {tensors}")
    return Text(clip(", ".join(facts), width), "dim")


def _bars(run: Snapshot, planned: int, now: float, width: int) -> Table:
    """Return the bars of the job's and the current task's progress."""
    over = run.rounds[-1].number if run.rounds else max(run.round - 1, 0)
    each = run.seconds_a_round
    pace = (
        ""
        if each is None
        else f", {each:.2f} s each"
        if each < 60
        else f", {format_left(each)} each"
    )
    rows = [Row(["rounds", over / max(planned, 1), f"{over:,} of {planned:,}{pace}"])]
    failed = f", {len(run.failed):,} failed" if run.failed else ""
    moving = [work for work in run.workers.values() if work.state == "downloading"]
    at_work = run.done or any(work.state in WORKING for work in run.workers.values())
    if run.is_quick:  # a bar would change too fast to be read
        rows.append(Row(["sites", None, f"{run.answers.per_second(now):,.0f} answers/s{failed}"]))
    elif run.phase.startswith("folding"):
        rows.append(_bytes_row("fold", run.folded, run.model_bytes))
    elif moving and not at_work and not run.is_shared:
        sizes = [min(work.down, run.model_bytes) for work in moving]
        rows.append(_bytes_row("down", sum(sizes), run.model_bytes * len(moving)))
    elif run.phase in WORKING:
        text = f"{run.done:,} of {run.asked:,} done{failed}"
        if run.is_shared:
            text += f", {run.answers.per_second(now):,.1f}/s"
        rows.append(Row(["sites", run.done / max(run.asked, 1), text]))
    else:
        ready = f"{len(run.started)} of {counted(len(run.workers), 'process')} ready"
        text = f"{run.done:,} of {run.asked:,} done{failed}" if run.round else ready
        rows.append(Row(["sites", None, text]))
    beside = min(_BESIDE_WIDE if width >= _WIDE else _BESIDE, width - _LABEL)
    columns = [
        Column("", "name", least=_LABEL - 2),
        Column("", "bar", 2, most=100),
        Column("", "text", 1, beside, beside),  # which does not change, so that no bar moves
    ]
    return Table(columns, rows, has_head=False, is_live=True)


def _bytes_row(label: str, done: int, total: int) -> Row:
    return Row([label, done / max(total, 1), f"{format_bytes(done)} of {format_bytes(total)}"])


def _workers(run: Snapshot, memory: LiveMemory, now: float, room: int) -> Table:
    """Return the table of workers, the failed and the longest at work first where not all fit."""
    columns = [
        Column("worker" if run.is_shared else "site", "name", least=_LABEL - 2, most=28),
        Column("state", "state", 1, least=11),
        Column("at", "name", 2, least=16, most=28),
        Column("", "bar", 3, most=60),
        Column("time", "name", 4, least=7),
        Column("down", "bytes", 6, least=9),
        Column("up", "bytes", 7, least=9),
        Column("RSS", "bytes", 5, least=9),
        Column("peak RSS", "bytes", 8, least=9),
        Column("node", "name", 5, most=20),
    ]
    nodes = any(isinstance(peaks.node, str) for peaks in memory.peaks.values())
    absent = {"up"} if run.is_shared else {"at"}
    absent |= set() if nodes else {"node"}
    places = [at for at, column in enumerate(columns) if column.head not in absent]
    failures = list(reversed(run.failures.items())) if run.is_shared else []
    # At least half of the lines are for workers, the rest for sites that failed.
    most = max((room - 1) // 2, room - 1 - len(failures))
    shown = run.shown_workers(most)
    hidden = len(run.workers) - len(shown)
    if hidden:
        shown = run.shown_workers(most - 1)
        hidden = len(run.workers) - len(shown)
    failures_room = room - 1 - len(shown) - bool(hidden)
    cells: list[list[Cell]] = [
        [site, "failed", None, reason] + [None] * 6 for site, reason in failures
    ]
    cells = cells[: max(failures_room, 0)]
    cells += [_worker(run, work, memory, now) for work in shown]
    rows: list[Row | Gap] = [
        Row([row[at] for at in places], "bad" if row[1] == "failed" else "") for row in cells
    ]
    rows += [Gap(hidden)] if hidden and rows else []
    return Table([columns[at] for at in places], rows if room > 1 else [], is_live=True)


def _worker(run: Snapshot, work: Activity, memory: LiveMemory, now: float) -> list[Cell]:
    state = work.state
    if state == "idle" and run.is_shared and run.is_quick:
        state = "at work"  # in quick rounds there are no events of each worker
    moved = work.up if state == "uploading" else work.down
    activity: float | str | None = None
    if state in MOVING and run.model_bytes:
        activity = min(moved / run.model_bytes, 1.0)
    elif work.worker in run.failures and not run.is_shared:
        activity = run.failures[work.worker]
    elif work.metrics and state in ("training", "ready"):
        activity = format_metrics(work.metrics)
    is_timed = state in (*MOVING, *WORKING)
    time = format_elapsed(now - work.since) if is_timed else ""
    rss = memory.rss.get(work.worker, 0)
    peaks = memory.peaks.get(work.worker, ProcessMemory())
    node = peaks.node if isinstance(peaks.node, str) else None
    sizes = [size or None for size in (work.down, work.up, rss, peaks.peak_rss)]
    return [work.worker, state, work.site or None, activity, time, *sizes, node]


def _footer(
    run: Snapshot,
    memory: LiveMemory,
    now: float,
    width: int,
) -> list[Text]:
    # Rates have a fixed width, so that the text after them does not move.
    down, up = (
        f"{format_rate(way.per_second(now)):>12}, {format_bytes(way.total)} in all"
        for way in (run.down, run.up)
    )
    held = f"server {format_bytes(memory.rss.get(SERVER, 0))} RSS"
    held += f", all processes at most {format_bytes(memory.peak_total)} so far"
    lines = [("down", f"{down:<32}up  {up}"), ("memory", held)]
    if run.scored is not None:
        scores = format_metrics(run.scored.metrics)
        lines.append(("scores", f"after round {run.scored.round}: {scores}"))
    room = max(width - _LABEL, 1)
    return [Text.assemble((label.ljust(_LABEL), "dim"), clip(text, room)) for label, text in lines]
