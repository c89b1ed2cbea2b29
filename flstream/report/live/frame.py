"""A frame of the live view of a run, for a terminal of any size."""

from __future__ import annotations

from collections import deque
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
_RATE_SECONDS, _LEAST_SECONDS = 2.0, 0.5


class LiveMemory(NamedTuple):
    """Present RSS and peaks of each process in bytes, and the peak of all at one time."""

    rss: Mapping[str, int] = MappingProxyType({})
    peaks: Mapping[str, ProcessMemory] = MappingProxyType({})
    peak_total: int = 0


class Rates:
    """Rates of a run over the last two seconds, from the totals of its frames."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, tuple[int, int, int]]] = deque()

    def per_second(self, run: Snapshot, now: float) -> list[float]:
        """Return bytes down, bytes up and sites per second."""
        # Where processes share sites, these answer together at the end of a task.
        totals = run.down, run.up, run.done if run.is_shared and not run.is_quick else run.answers
        self._seen.append((now, totals))
        while self._seen[0][0] < now - _RATE_SECONDS:
            self._seen.popleft()
        begin, before = self._seen[0]
        seconds = max(now - begin, _LEAST_SECONDS)
        return [max(b - a, 0) / seconds for a, b in zip(before, totals, strict=True)]


def render(
    run: Snapshot, memory: LiveMemory, rates: Rates, now: float, width: int, height: int
) -> Group:
    """Render a frame of the live view.

    Args:
        run: the run.
        memory: memory of its processes.
        rates: rates, which see every frame.
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
    gap = [Text()] if roomy else []
    down, up, answers = rates.per_second(run, now)
    top: list[Text | Table] = [_title(run, start, now, width)]
    top += [_facts(run, start, width), Text()] if roomy else []
    top.append(_bars(run, start.rounds, answers, width))
    bottom = _footer(run, memory, down, up, width)
    bottom = [*gap, *bottom] if roomy else bottom[:1]
    workers = _workers(run, memory, now, height - _lines([*top, *bottom]) - roomy)
    top += [*gap, workers] if workers.rows else []
    past = height - _lines([*top, *bottom]) - 2
    if past >= _LEAST_PAST and run.rounds:
        shown = list(run.rounds)[-past:]
        metrics = order_metrics(metric for row in shown for metric in row.metrics)
        table = rounds_table(shown, metrics, None, len(shown))
        top += [Text(), Table(table.columns, table.rows, is_live=True)]
    return Group(*top, *bottom)


def _lines(parts: Sequence[Text | Table]) -> int:
    return sum(len(p.rows) + p.has_head if isinstance(p, Table) else 1 for p in parts)


def _title(run: Snapshot, start: RunStarted, now: float, width: int) -> Text:
    where = f"round {run.round} of {start.rounds}" if run.round else counted(start.rounds, "round")
    phase = "downloading" if run.downloading else printable(run.phase)
    phase = "training" if run.is_quick else phase
    times = format_elapsed(now - run.began)
    seconds = run.seconds_left(now)
    beside, name = len(f"  {where}  {phase}  "), printable(start.job)
    if seconds is not None and seconds >= 1:
        longer = f"{times}, about {format_left(seconds)} left"
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


def _bars(run: Snapshot, planned: int, answers: float, width: int) -> Table:
    """Return the bars of the job's and the present task's progress."""
    over, pace = max(run.round - 1, run.rounds[-1].number if run.rounds else 0), run.seconds_a_round
    text = f"{over:,} of {planned:,}"
    if pace is not None:
        text += f", {pace:.2f} s each" if pace < 60 else f", {format_left(pace)} each"
    rows = [Row(["rounds", over / max(planned, 1), text])]
    failed = f", {len(run.failed):,} failed" if run.failed else ""
    text = f"{run.done:,} of {run.asked:,} done{failed}"
    moving = run.downloading
    if run.is_quick:  # a bar would change too fast to be read
        rows.append(Row(["sites", None, f"{answers:,.0f} answers/s{failed}"]))
    elif run.phase.startswith("folding"):
        rows.append(_bytes_row("fold", run.folded, run.model_bytes))
    elif moving:
        sizes = [min(work.down, run.model_bytes) for work in moving]
        rows.append(_bytes_row("down", sum(sizes), run.model_bytes * len(moving)))
    elif run.phase in WORKING:
        text += f", {answers:,.1f}/s" if run.is_shared else ""
        rows.append(Row(["sites", run.done / max(run.asked, 1), text]))
    else:
        ready = f"{len(run.ready)} of {counted(len(run.workers), 'process')} ready"
        rows.append(Row(["sites", None, text if run.round else ready]))
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
    absent = {"up"} if run.is_shared else {"at"}
    if not any(isinstance(peaks.node, str) for peaks in memory.peaks.values()):
        absent.add("node")
    places = [at for at, column in enumerate(columns) if column.head not in absent]
    failures = list(reversed(run.failures.items())) if run.is_shared else []
    # At least half of the lines are for workers, the rest for sites that failed.
    most = max((room - 1) // 2, room - 1 - len(failures))
    shown = run.shown_workers(most)
    if len(shown) < len(run.workers):
        shown = run.shown_workers(most - 1)
    hidden = len(run.workers) - len(shown)
    failures = failures[: max(room - 1 - len(shown) - bool(hidden), 0)]
    cells = [[site, "failed", None, reason, *([None] * 6)] for site, reason in failures]
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
    activity: float | str | None = None
    if state in MOVING and run.model_bytes:
        moved = work.up if state == "uploading" else work.down
        activity = min(moved / run.model_bytes, 1.0)
    elif work.worker in run.failures and not run.is_shared:
        activity = run.failures[work.worker]
    elif work.metrics and state in ("training", "ready"):
        activity = format_metrics(work.metrics)
    time = format_elapsed(now - work.since) if state in (*MOVING, *WORKING) else ""
    peaks = memory.peaks.get(work.worker, ProcessMemory())
    node = peaks.node if isinstance(peaks.node, str) else None
    sizes = (work.down, work.up, memory.rss.get(work.worker, 0), peaks.peak_rss)
    site = work.site or None
    return [work.worker, state, site, activity, time, *(size or None for size in sizes), node]


def _footer(run: Snapshot, memory: LiveMemory, down: float, up: float, width: int) -> list[Text]:
    # Rates have a fixed width, so that the text after them does not move.
    received = f"{format_rate(down):>12}, {format_bytes(run.down)} in all"
    sent = f"{format_rate(up):>12}, {format_bytes(run.up)} in all"
    held = f"server {format_bytes(memory.rss.get(SERVER, 0))} RSS"
    held += f", all processes at most {format_bytes(memory.peak_total)} so far"
    lines = [("down", f"{received:<32}up  {sent}"), ("memory", held)]
    if run.scored is not None:
        scores = format_metrics(run.scored.metrics)
        lines.append(("scores", f"after round {run.scored.round}: {scores}"))
    room = max(width - _LABEL, 1)
    return [Text.assemble((label.ljust(_LABEL), "dim"), clip(text, room)) for label, text in lines]
