"""A frame of the live view of a run, for a terminal of any size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from flstream.report.live.run_state import LiveRun
from flstream.report.metrics import flat_metrics, order_metrics
from flstream.report.table import Cell, Column, Gap, Row, Table
from flstream.report.text import (
    GAP,
    clip,
    counted,
    elide,
    format_elapsed,
    format_metrics,
    pieces,
)
from flstream.report.views import rounds_table
from flstream.runs.summary import round_summary
from flstream.telemetry.events import SERVER, RunStarted, WorkerActivity
from flstream.telemetry.memory import ProcessMemory
from flstream.text import printable
from flstream.units import format_bytes, format_rate, format_seconds

# Lines of a terminal below which only the title, the bars, the workers and the rates are shown.
_ROOMY = 15
_LABEL, _LEAST_NAME, _LEAST_PAST, _MOST_PAST, _MOST_WORKERS = 8, 8, 2, 24, 32
# Columns beside a bar, those of a terminal on which there are more of them, and the least of a bar.
_BESIDE, _BESIDE_WIDE, _WIDE, _LEAST_BAR = 28, 40, 100, 10
_MOVING, _WORKING = ("downloading", "uploading"), ("training", "evaluating", "submitting")
# Columns without a least width are shown where they have a value.
_WORKER_COLUMNS = [
    Column("worker", "name", least=_LABEL - 2, most=28),
    Column("state", "state", 1, least=11),
    Column("site", "name", 3, most=28),
    Column("at work", "text", 2, least=20, most=60),
    Column("time", "name", 4, least=7),
    Column("RSS", "bytes", 5, least=9),
    Column("peak RSS", "bytes", 6, least=9),
    Column("node", "name", 5, most=20),
]


class LiveMemory(NamedTuple):
    """Present RSS and peaks of each process in bytes, and the peak of all at one time."""

    rss: Mapping[str, int] = MappingProxyType({})
    peaks: Mapping[str, ProcessMemory] = MappingProxyType({})
    peak_total: int = 0


def render(run: LiveRun, memory: LiveMemory, now: float, width: int, height: int) -> Group:
    """Render a frame of the live view.

    Returns:
        Texts of a line each and tables, which fit a terminal of at least five lines.
    """
    start = run.start
    if start is None:
        elapsed = format_elapsed(now - run.began)
        return Group(Text(clip(f"flstream  {printable(run.phase)}  {elapsed}", width)))
    roomy = height >= _ROOMY
    top: list[Text | Table | Grid] = [_title(run, start, now, width)]
    top += [_facts(run, start, width), Text()] if roomy else []
    top += _bars(run, start.rounds, width)
    bottom = _footer(run, memory, width)
    bottom = [Text(), *bottom] if roomy else bottom[:1]
    workers = _workers(run, memory, now, height - _lines([*top, *bottom]) - roomy)
    top += [*([Text()] if roomy else []), workers] if workers.rows else []
    past = height - _lines([*top, *bottom]) - 2
    rounds = run.history.rounds[-min(past, _MOST_PAST) :] if past >= _LEAST_PAST else []
    if rounds:
        scores = run.history.scores
        values = {
            record.number: flat_metrics({**scores.get(record.number, {}), "train": record.trained})
            for record in rounds
        }
        metrics = order_metrics(metric for row in values.values() for metric in row)
        table = rounds_table([*map(round_summary, rounds)], values, metrics, most=len(rounds))
        top += [Text(), replace(table, is_live=True)]
    return Group(*top, *bottom)


def _lines(parts: Sequence[Text | Table | Grid]) -> int:
    return sum(len(part.rows) + 1 if isinstance(part, Table) else 1 for part in parts)


def _title(run: LiveRun, start: RunStarted, now: float, width: int) -> Text:
    where = f"round {run.round} of {start.rounds}" if run.round else counted(start.rounds, "round")
    times, rest = format_elapsed(now - run.began), run.seconds_left(now)
    times += f", about {format_seconds(round(rest))} left" if rest and rest >= 1 else ""
    simulated = run.history.rounds[-1].simulated_seconds if run.history.rounds else None
    times += f", {format_seconds(simulated)} simulated" if simulated is not None else ""
    phase = "training" if run.is_quick else printable(run.phase)
    others = [where, times, phase]
    name = elide(printable(start.job), max(width - len(GAP.join(["", *others])), _LEAST_NAME))
    return Text(clip(GAP.join([name, *others]), width), "bold")


def _facts(run: LiveRun, start: RunStarted, width: int) -> Text:
    sites = counted(start.clients, "site")
    sites += f" in {counted(len(start.workers), 'process')}" if start.workers else ""
    facts = [sites, f"{start.mode} mode", pieces(start.chunk_size)]
    if run.history.model_tensors:
        tensors = counted(run.history.model_tensors, "tensor")
        facts.insert(0, f"model of {format_bytes(run.history.model_bytes)} in {tensors}")
    return Text(clip(", ".join(facts), width), "dim")


def _bars(run: LiveRun, planned: int, width: int) -> list[Text | Grid]:
    """Return the bars of the job's and of the present task's progress."""
    over = max(run.round - 1, run.history.last_round or 0)
    text, pace, now = f"{over:,} of {planned:,}", run.seconds_a_round, run.now
    if pace is not None:
        text += f", {pace:.2f} s each" if pace < 60 else f", {format_seconds(round(pace))} each"
    rounds = _bar("rounds", over / max(planned, 1), text, width)
    failed = f", {now.failed:,} failed" if now.failed else ""
    label, share, text = "sites", None, f"{now.done:,} of {now.asked:,} done{failed}"
    if run.is_quick:  # a bar would change too fast to be read
        text = f"{now.rates[2]:,.0f} answers/s{failed}"
    elif run.phase in ("folding", "downloading"):
        label, done, total = "fold", now.folded, run.history.model_bytes
        if run.phase == "downloading":
            done, total = sum(work.moved for work in now.workers), total * len(now.workers)
            label = "down"
        share, text = done / max(total, 1), f"{format_bytes(done)} of {format_bytes(total)}"
    elif run.phase in _WORKING:
        share = now.done / max(now.asked, 1)
        text += f", {now.rates[2]:,.1f}/s" if run.history.facts.workers else ""
    elif not run.round:
        text = f"{len(run.ready)} of {counted(len(run.names), 'process')} ready"
    task = _bar(label, share, text, width)
    return [rounds, task]


def _bar(label: str, share: float | None, text: str, width: int) -> Text | Grid:
    """Return a bar between a label and a text; without room, label and text alone."""
    # The columns of the text do not change, so that no bar moves.
    beside = _BESIDE_WIDE if width >= _WIDE else _BESIDE
    length = width - _LABEL - len(GAP) - beside
    head = Text(label.ljust(_LABEL))
    if length < _LEAST_BAR:
        return head + Text(clip(text, max(width - _LABEL, 1)))
    grid = Grid.grid()
    for columns in (_LABEL, length + len(GAP), beside):
        grid.add_column(width=columns, no_wrap=True)
    bar = ProgressBar(1.0, min(share, 1.0), length) if share is not None else ""
    grid.add_row(head, bar, clip(text, beside))
    return grid


def _workers(run: LiveRun, memory: LiveMemory, now: float, room: int) -> Table:
    """Return the table of workers: failed sites, workers at work, then the others."""
    lines = max(room - 1, 0)
    most_failures = max(lines // 2, lines - len(run.names))
    failures = dict(islice(reversed(run.failures.items()), most_failures))
    works = {work.worker: work for work in run.now.workers}
    workers = [name for name in run.names if name not in failures]
    count, most = len(workers), min(lines - len(failures), _MOST_WORKERS)
    if count > most:
        urgency = {name: (work.state == "ready", work.since) for name, work in works.items()}
        workers.sort(key=lambda name: urgency.get(name, (True, now)))
        workers = workers[: max(most - 1, 0)]
    cells: list[dict[str, Cell]] = [
        {"worker": site, "state": "failed", "at work": why} for site, why in failures.items()
    ]
    for name in workers:
        peaks = memory.peaks.get(name, ProcessMemory())
        sizes = {"RSS": memory.rss.get(name) or None, "peak RSS": peaks.peak_rss or None}
        node = peaks.node if isinstance(peaks.node, str) else None
        activity = _activity(run, name, works.get(name), now)
        cells.append({"worker": name, **activity, **sizes, "node": node})
    columns = [
        column
        for column in _WORKER_COLUMNS
        if column.least or any(row.get(column.head) for row in cells)
    ]
    rows: list[Row | Gap] = [
        Row([row.get(c.head) for c in columns], "bad" if row["state"] == "failed" else "")
        for row in cells
    ]
    hidden = count - len(workers)
    return Table(columns, [*rows, *([Gap(hidden)] if hidden and rows else [])], is_live=True)


def _activity(run: LiveRun, name: str, work: WorkerActivity | None, now: float) -> dict[str, Cell]:
    """Return the cells of a worker's state, site, progress or metrics, and time."""
    if work is None:
        return {"state": "idle" if name in run.ready else "starting"}
    cells: dict[str, Cell] = {"state": work.state, "site": work.site or None}
    if work.sites > 1:
        cells["site"] = f"{work.site}, {work.over + 1:,} of {work.sites:,}"
    if work.state in _MOVING and run.history.model_bytes:
        share = work.moved / run.history.model_bytes
        cells["at work"] = f"{share:.0%} of {format_bytes(run.history.model_bytes)}"
    elif metrics := run.metrics.get(name):
        cells["at work"] = format_metrics(metrics)
    if work.state in (*_MOVING, *_WORKING):
        cells["time"] = format_elapsed(now - work.since)
    return cells


def _footer(run: LiveRun, memory: LiveMemory, width: int) -> list[Text]:
    down, up, _ = run.now.rates
    # Rates have a fixed width, so that the text after them does not move.
    received = f"{format_rate(down):>12}, {format_bytes(run.now.down)} in all"
    sent = f"{format_rate(up):>12}, {format_bytes(run.now.up)} in all"
    held = f"server {format_bytes(memory.rss.get(SERVER, 0))} RSS"
    held += f", all processes at most {format_bytes(memory.peak_total)} so far"
    lines = [("down", f"{received:<32}up  {sent}"), ("memory", held)]
    if run.history.scores:
        number, metrics = next(reversed(run.history.scores.items()))
        lines.append(("scores", f"after round {number}: {format_metrics(metrics)}"))
    room = max(width - _LABEL, 1)
    return [Text.assemble((label.ljust(_LABEL), "dim"), clip(text, room)) for label, text in lines]
