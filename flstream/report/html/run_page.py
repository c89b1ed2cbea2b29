"""The page of one run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from flstream.report.charts.seconds import PHASE_COLORS
from flstream.report.charts.style import ink
from flstream.report.html.drawings import (
    metric_drawings,
    over_idle_drawing,
    rss_drawing,
    seconds_drawing,
)
from flstream.report.html.page import render, write_page
from flstream.report.html.tables import (
    NOTHING,
    Row,
    Table,
    failure_tables,
    process_tables,
    rounds_table,
    setting_tables,
    site_tables,
    totals_table,
    transfer_table,
)
from flstream.report.metrics import metrics_of
from flstream.report.record.run import RunRecord, read_run
from flstream.report.text import counted, format_metric, pieces, printable
from flstream.simulator.files.run_directory import RunDirectory
from flstream.units import format_bytes, format_seconds


class Fact(NamedTuple):
    """A figure at the top of the page."""

    label: str
    value: str
    note: str = ""


def write_report(run: Path, output: Path | None = None) -> Path:
    """Write the report of a run.

    Args:
        run: its folder.
        output: the file; None is ``report.html`` in the folder.

    Returns:
        The file that was written.

    Raises:
        UsageError: it is no run directory, or a file is in the way that is no report.
        SimulationError: the disk refused the file.
    """
    record = read_run(run)
    path = output or RunDirectory(record.path).report
    write_page(path, run_page(record))
    return path


def run_page(run: RunRecord) -> str:
    """The page of one run, as HTML."""
    summary, events = run.summary, run.events
    processes, more_processes = process_tables(run)
    sites, more_sites = site_tables(run)
    failures, more_failures = failure_tables(run)
    settings, more_settings = setting_tables(run.settings)
    asked = max(summary.clients, len(events.sites))
    unlisted = len(events.sites) - len(sites.rows) - len(more_sites.rows)
    return render(
        "run.html",
        {
            "name": printable(summary.job) or run.path.name,
            "status": run.status,
            "headline": headline(run),
            "where": _where(run),
            "error": printable(summary.error or ""),
            "remarks": remarks(run),
            "facts": facts(run),
            "phases": list(PHASE_COLORS.items()),
            "metrics": metric_drawings([run], [ink("blue")], [""]),
            "metrics_note": _metrics_note(run),
            "no_metrics": _no_metrics(run),
            "rounds": rounds_table(run),
            "over_idle": over_idle_drawing(run, "over-idle"),
            "rss": rss_drawing(run, "rss"),
            "joints": (
                " Dotted lines across: the run was resumed there; the time between does not count."
                if len(run.clock.sittings) > 1
                else ""
            ),
            "processes": processes,
            "more_processes": more_processes,
            "seconds": seconds_drawing(run, "seconds"),
            "totals": totals_table(run),
            "transfer": transfer_table(run),
            "transfer_note": _transfer_note(run),
            "sites": sites,
            "sites_note": _sites_note(run, asked),
            "more_sites": more_sites,
            "more_sites_title": f"{len(more_sites.rows):,} more sites"
            + (f"; {unlisted:,} are only in events.jsonl" if unlisted else ""),
            "failures": failures,
            "more_failures": more_failures,
            "settings": settings,
            "more_settings": more_settings,
            "versions": Table(["", ""], [Row([*pair]) for pair in run.versions.items()], (1,)),
        },
    )


def headline(run: RunRecord) -> str:
    """What a run was and what it cost, in a sentence or two."""
    summary = run.summary
    sites = counted(summary.clients, "site")
    took = format_seconds(run.seconds)
    done = counted(summary.rounds_completed, "round")
    if run.status == "finished":
        first = f"{done} with {sites} in {took}"
    else:
        ended = {"failed": "Failed", "stopped": "Stopped"}.get(run.status, "Cut off")
        of = f" of {run.planned:,}" if run.planned else ""
        first = f"{ended} after {summary.rounds_completed:,}{of} rounds with {sites}, {took}"
    over = summary.memory.server.over_idle
    if not over or not summary.model.bytes:
        return f"{first}."
    return (
        f"{first}; the server stayed within {format_bytes(over)} over idle for a model of "
        f"{format_bytes(summary.model.bytes)}."
    )


def remarks(run: RunRecord) -> list[str]:
    """Everything about a run that is out of the ordinary, a sentence each."""
    summary, events = run.summary, run.events
    found = list(run.notes)
    if summary.ended_early:
        found.append(f"Ended early: {summary.ended_early}.")
    if events.unfinished is not None and run.status != "finished":
        found.append(f"Round {events.unfinished} was under way; nothing of it counts.")
    for number in events.resumed_from:
        last = "from its beginning" if number in (None, 0) else f"after round {number}"
        found.append(f"The run was interrupted, and went on {last}.")
    if summary.benched:
        found.append(f"Asked no more, having failed too often: {', '.join(summary.benched)}.")
    found += [f"Warning: {warning}" for warning in summary.warnings]
    return [printable(each) for each in found]


def facts(run: RunRecord) -> list[Fact]:
    """The figures at the top of the page."""
    summary = run.summary
    memory, model = summary.memory, summary.model.bytes
    found = []
    if summary.best is not None:
        best = summary.best
        where = f"best, after round {best.round:,}"
        found.append(Fact(printable(best.metric), format_metric(best.value), where))
    found.append(Fact("time", format_seconds(run.seconds), counted(len(summary.rounds), "round")))
    over = memory.server.over_idle
    if over:
        found.append(Fact("server over idle", format_bytes(over), _times(over, model)))
    largest = max((client.over_idle for client in memory.clients.values()), default=0)
    if largest:
        found.append(
            Fact("largest client over idle", format_bytes(largest), _times(largest, model))
        )
    if memory.peak_total_pss:
        note = "at most at one time, shared pages once"
        found.append(Fact("all processes", format_bytes(memory.peak_total_pss), note))
    moved = summary.transfer.down.bytes + summary.transfer.up.bytes
    if moved:
        requests = summary.transfer.down.requests + summary.transfer.up.requests
        found.append(Fact("moved", format_bytes(moved), f"in {counted(requests, 'request')}"))
    if model:
        tensors = counted(summary.model.tensors, "tensor")
        found.append(Fact("model", format_bytes(model), f"in {tensors}"))
    return found


def _times(size: int, model: int) -> str:
    # Of a small model, the multiple says nothing: what a process takes then is not the model's.
    return f"{size / model:.2f} times the model" if model >= 16 << 20 else ""


def _where(run: RunRecord) -> str:
    parts = [str(run.path)]
    if run.clock.sittings:
        began = time.gmtime(run.clock.sittings[0].begin)
        parts.append(f"began {time.strftime('%Y-%m-%d %H:%M UTC', began)}")
    if run.summary.seed or run.settings:
        parts.append(f"seed {run.summary.seed}")
    if run.summary.model.digest:
        parts.append(f"model digest {run.summary.model.digest}")
    return printable(" · ".join(parts))


def _metrics_note(run: RunRecord) -> str:
    metrics = metrics_of([run.summary])
    said = []
    if any(not metric.kind for metric in metrics):
        said.append("Scores are of the model that a round ended with, by all sites that evaluated")
    if any(metric.kind for metric in metrics):
        said.append("train values are what sites reported with their updates, weighted alike")
    if run.summary.best is not None:
        said.append("the circle is the best round")
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}."


def _no_metrics(run: RunRecord) -> str:
    if not run.summary.rounds:
        return "No round was completed."
    return "The sites reported none."


def _transfer_note(run: RunRecord) -> str:
    transfer = run.summary.transfer
    said = f"{transfer.mode.capitalize() or NOTHING} mode, {pieces(transfer.chunk_size)}."
    retries = transfer.down.retries + transfer.up.retries
    if retries:
        said += f" {counted(retries, 'request')} asked again for what had not arrived sound."
    return said


def _sites_note(run: RunRecord, asked: int) -> str:
    sites = run.events.sites.values()
    failed = sum(bool(site.failures) for site in sites)
    said = f"{len(sites):,} of {counted(asked, 'site')} took part"
    said += f"; {failed:,} of them failed at least once" if failed else ", and none failed"
    said += ". Shares are of the weight of all updates together."
    if failed or any(site.trains for site in sites):
        said += " First those that failed most, then the slowest."
    return said
