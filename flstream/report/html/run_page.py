"""The page of one run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from flstream.report.charts.seconds import PHASE_COLORS
from flstream.report.html.cross_site import cross_site_drawing, cross_site_note
from flstream.report.html.drawings import (
    metric_drawings,
    over_idle_drawing,
    rss_drawing,
    seconds_drawing,
)
from flstream.report.html.logged_values import (
    logged_drawings,
    logged_note,
    text_note,
    text_table,
)
from flstream.report.html.page import render, write_page
from flstream.report.html.split import split_drawing, split_note
from flstream.report.html.tables import (
    NOTHING,
    PageRow,
    PageTable,
    failure_tables,
    nodes_table,
    process_tables,
    rounds_table,
    setting_tables,
    site_tables,
    totals_table,
    transfer_table,
)
from flstream.report.metrics import UNSCORED, metrics_of
from flstream.report.record.run import RunRecord, read_run
from flstream.report.text import counted, format_epsilon, format_metric, pieces
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.events import RunResumed
from flstream.text import printable
from flstream.units import format_bytes, format_seconds


class Fact(NamedTuple):
    """A figure at the top of the page.

    Attributes:
        label: name of the figure.
        value: formatted value.
        note: remark below the value; empty for none.
    """

    label: str
    value: str
    note: str = ""


def write_report(run: Path, output: Path | None = None) -> Path:
    """Write the page of a run.

    Args:
        run: path of the run directory.
        output: path of the page; None for ``report.html`` in the run directory.

    Returns:
        The path of the page.

    Raises:
        UsageError: the folder is not a run directory, or an existing file is not a page of
            flstream.
        SimulationError: the page cannot be written.
    """
    record = read_run(run)
    path = output or RunDirectory(record.path).report
    write_page(path, run_page(record))
    return path


def run_page(run: RunRecord) -> str:
    """Render the page of a run, as HTML."""
    summary = run.summary
    processes, more_processes = process_tables(run)
    sites, more_sites = site_tables(run)
    failures, more_failures = failure_tables(run)
    settings, more_settings = setting_tables(run.settings)
    asked = max(summary.clients, len(run.sites))
    unlisted = len(run.sites) - len(sites.rows) - len(more_sites.rows)
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
            "metrics": metric_drawings([run], [""]),
            "metrics_note": _metrics_note(run),
            "no_metrics": _no_metrics(run),
            "rounds": rounds_table(run),
            "logged": logged_drawings(run.logged),
            "logged_note": logged_note(run.logged),
            "texts": text_table(run.logged),
            "texts_note": text_note(run.logged),
            "cross_site": cross_site_drawing(run.cross_site, run.history.facts.key_metric),
            "cross_site_note": cross_site_note(run.cross_site, run.history.facts.key_metric),
            "split": split_drawing(run.split),
            "split_note": split_note(run.split),
            "over_idle": over_idle_drawing(run),
            "rss": rss_drawing(run),
            "is_resumed": len(run.clock.sittings) > 1,
            "processes": processes,
            "more_processes": more_processes,
            "nodes": nodes_table(run),
            "seconds": seconds_drawing(run),
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
            "versions": PageTable(
                ["", ""], [PageRow([*pair]) for pair in run.versions.items()], (1,)
            ),
        },
    )


def headline(run: RunRecord) -> str:
    """Return a sentence with the outcome of a run, its time and the server's memory."""
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
    """Return a sentence for each irregularity of a run, such as interruptions and warnings."""
    summary, history = run.summary, run.history
    found = list(run.notes)
    if summary.ended_early:
        found.append(f"Ended early: {summary.ended_early}.")
    if history.round_under_way is not None and run.status != "finished":
        found.append(f"Round {history.round_under_way} was under way; a resume does it again.")
    found += [
        f"The run was interrupted, and went on {_place(event)}."
        for event in history.timeline.resumes
    ]
    if summary.benched:
        found.append(f"Asked no more, having failed too often: {', '.join(summary.benched)}.")
    found += [f"Warning: {warning}" for warning in summary.warnings]
    return [printable(each) for each in found]


def _place(event: RunResumed) -> str:
    """Where a run went on."""
    if not event.round and not event.effect:
        return "from its beginning"
    return f"after effect {event.effect} of its workflow, with the model of round {event.round}"


def facts(run: RunRecord) -> list[Fact]:
    """Return the figures at the top of the page of a run."""
    summary = run.summary
    memory, model = summary.memory, summary.model.bytes
    found = []
    if summary.best is not None:
        best = summary.best
        where = f"best, after round {best.round:,}" if best.round else "best, of the initial model"
        found.append(Fact(printable(best.metric), format_metric(best.value), where))
    spent = summary.privacy
    if spent is not None:
        note = f"{spent.clipped:.0%} of updates clipped to {spent.clip_norm:.4g}"
        found.append(Fact("epsilon", format_epsilon(spent), note))
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
    if memory.nodes:
        largest_node = format_bytes(max(memory.nodes.values()))
        note = f"at most {largest_node} on one of {counted(len(memory.nodes), 'node')}"
        found.append(Fact("on the nodes", format_bytes(sum(memory.nodes.values())), note))
    moved = summary.transfer.down.bytes + summary.transfer.up.bytes
    if moved:
        requests = summary.transfer.down.requests + summary.transfer.up.requests
        found.append(Fact("moved", format_bytes(moved), f"in {counted(requests, 'request')}"))
    if model:
        tensors = counted(summary.model.tensors, "tensor")
        found.append(Fact("model", format_bytes(model), f"in {tensors}"))
    return found


def _times(size: int, model: int) -> str:
    # Beside a small model, most of a process's memory is not the model's, so no ratio is shown.
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
    is_received = run.summary.evaluate == "received"
    notes = []
    if any(not metric.kind for metric in metrics):
        by = "who received it to train it" if is_received else "that evaluated"
        notes.append(f"Scores are of the model that a round ended with, by all sites {by}")
        if is_received:
            notes.append(f"the last model has {UNSCORED}")
    if any(metric.kind for metric in metrics):
        notes.append("train values are what sites reported with their updates, weighted alike")
    if run.summary.best is not None:
        notes.append("the circle is the best round")
    text = "; ".join(notes)
    return f"{text[:1].upper()}{text[1:]}."


def _no_metrics(run: RunRecord) -> str:
    if not run.summary.rounds:
        return "No round was completed." if run.planned else "Nothing was trained."
    return "The sites reported none."


def _transfer_note(run: RunRecord) -> str:
    transfer = run.summary.transfer
    note = f"{transfer.mode.capitalize() or NOTHING} mode, {pieces(transfer.chunk_size)}."
    retries = transfer.down.retries + transfer.up.retries
    if retries:
        note += f" {counted(retries, 'request')} asked again for what had not arrived sound."
    reused = transfer.down.reused + transfer.up.reused
    if reused:
        note += (
            f" Not sent, since the receiver had them: {format_bytes(transfer.down.reused)} down, "
            f"{format_bytes(transfer.up.reused)} up."
        )
    return note


def _sites_note(run: RunRecord, asked: int) -> str:
    sites = run.sites.values()
    failed = sum(bool(site.failures) for site in sites)
    note = f"{len(sites):,} of {counted(asked, 'site')} took part"
    note += f"; {failed:,} of them failed at least once" if failed else ", and none failed"
    note += ". Shares are of the weight of all updates together."
    if failed or any(site.trains for site in sites):
        note += " First those that failed most, then the slowest."
    return note
