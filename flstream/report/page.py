"""The page of one run or several, the index of a folder of runs, and the result in a notebook."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2
import numpy as np

import flstream
from flstream.errors import SimulationError, UsageError
from flstream.report import run_charts, views
from flstream.report.metrics import UNSCORED, metrics_of
from flstream.report.run_record import RunRecord, read_run
from flstream.report.table import Link, Table
from flstream.report.text import counted, format_epsilon, format_metric
from flstream.runs.run_directory import RunDirectory
from flstream.runs.small_files import write_whole
from flstream.telemetry.events import RunResumed
from flstream.text import natural_key, printable
from flstream.units import format_bytes, format_seconds

REFRESH_SECONDS = 5
"""Seconds after which a browser loads the page of a run that is going on once more."""

_GENERATOR = "flstream report"
# Marks a page as written by flstream, and as one that refreshes itself.
_MARK = f'<meta name="generator" content="{_GENERATOR}">'
_REFRESHES = '<meta http-equiv="refresh"'
_HEAD_BYTES = 512
_INDEX = "index.html"
# Beside a small model, most of a process's memory is not the model's, so no ratio is shown.
_LARGE_MODEL = 16 << 20
_MOST_ROUNDS, _MOST_CLIENTS, _MOST_FAILED = 60, 40, 40


class Fact(NamedTuple):
    """A figure at the top of a run's page: label, formatted value, remark or an empty text."""

    label: str
    value: str
    note: str = ""


def write_page(
    runs: Sequence[Path], output: Path | None = None, *, is_running: bool | None = None
) -> Path:
    """Write the page of a run, or of several to compare.

    Args:
        runs: paths of run directories.
        output: path of the page; None for ``report.html`` in the run directory, or for several
            runs ``comparison.html`` in the working directory.
        is_running: whether the runs are going on; None to find out by their locks.

    Returns:
        The path of the page.

    Raises:
        UsageError: a folder is not a run directory, or an existing file is not a page of flstream.
        SimulationError: the page cannot be written.
    """
    own = RunDirectory(runs[0].absolute()).report if len(runs) == 1 else Path("comparison.html")
    path = output or own
    records = [read_run(run, is_running=is_running) for run in runs]
    check_replaceable(path)
    _write(path, run_page(records))
    return path


def write_index(folder: Path, output: Path | None = None) -> Path:
    """Write the index of all runs below a folder, and pages of those that lack a true one.

    Args:
        folder: the folder.
        output: path of the index; None for ``index.html`` in the folder.

    Returns:
        The path of the index.

    Raises:
        UsageError: there is no run below the folder, or an existing file is not a page of flstream.
        SimulationError: a page cannot be written.
    """
    journals = sorted(folder.glob("**/events.jsonl"), key=lambda path: natural_key(str(path)))
    if not journals:
        raise UsageError(
            f"{folder} is not a run directory, and no run lies below it: none has an events.jsonl; "
            "name the folder that flstream simulate made, such as runs/<job>-<time>, or runs"
        )
    path = output or folder / _INDEX
    check_replaceable(path)
    runs = [read_run(events.parent) for events in journals]
    links = []
    for run in runs:
        page = RunDirectory(run.path).report
        if not page.exists() or (run.status != "running" and _refreshes(page)):
            with suppress(UsageError):  # somebody else's file has that name
                _write(page, run_page([run]))
        address = quote(os.path.relpath(page, path.absolute().parent))
        links.append(Link(str(run.path.relative_to(folder.absolute())), address))
    title = f"{counted(len(runs), 'run')} in {printable(folder.absolute().name)}"
    table = views.runs_table(runs, links)
    _write(path, _render("index.html", is_running=False, title=title, runs=table))
    return path


def run_page(runs: Sequence[RunRecord]) -> str:
    """Render the page of one run, or of several to compare, as HTML."""
    labels = run_labels([run.path for run in runs])
    is_one = len(runs) == 1
    if is_one:
        settings = [views.settings_table(runs[0].settings, default=d) for d in (False, True)]
    else:
        values = [{key: setting.value for key, setting in run.settings.items()} for run in runs]
        settings = [views.differing_table(values, labels, same=same) for same in (False, True)]
    versions = [run.versions for run in runs]
    remarks = [
        remark if is_one else f"{label}: {remark}"
        for run, label in zip(runs, labels, strict=True)
        for remark in filter(None, [run.summary.error, *remarks_of(run)])
    ]
    return _render(
        "page.html",
        is_running=is_one and runs[0].status == "running",
        is_one=is_one,
        title=printable(runs[0].name) if is_one else f"{len(runs)} runs side by side",
        status=runs[0].status if is_one else "",
        headline=headline(runs[0]) if is_one else "",
        where=_where(runs[0]) if is_one else "",
        remarks=list(map(printable, remarks)),
        facts=facts(runs[0]) if is_one else [],
        glance=None if is_one else _glance(runs, labels),
        metrics=run_charts.metric_charts(runs, labels),
        metrics_note=_metrics_note(runs),
        parts=_parts(runs, labels),
        settings=settings[0],
        more_settings=settings[1],
        versions=[views.differing_table(versions, labels, same=same) for same in (True, False)],
    )


def run_cell(path: Path) -> str:
    """Render the result of a run for a notebook, as HTML.

    Raises:
        UsageError: the folder is not a run directory, or cannot be read.
    """
    run = read_run(path)
    return _render(
        "cell.html",
        is_running=run.status == "running",
        name=printable(run.name),
        status=run.status,
        headline=headline(run),
        error=printable(run.summary.error or ""),
        remarks=list(map(printable, remarks_of(run))),
        facts=facts(run),
        rounds=views.rounds_of(run.summary),
        charts_of_run=[
            *run_charts.metric_charts([run], [""]),
            *run_charts.memory_charts(run, None)[:1],
        ],
        where=printable(str(run.path)),
    )


def run_labels(paths: Sequence[Path]) -> list[str]:
    """Return a unique label for each run: its folder's name, with parent folders where needed."""
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        labels = [str(Path(*path.parts[-depth:])) for path in paths]
        if len(set(labels)) == len(set(paths)):
            break
    return [printable(label) for label in labels]


def _parts(runs: Sequence[RunRecord], labels: Sequence[str]) -> list[dict[str, object]]:
    """Return tables and charts of each run; the charts of several have the same vertical scales."""
    memory = seconds = None
    if len(runs) > 1:
        curves = [values for run in runs for values in run_charts.over_idle(run).values()]
        highest = [float(np.nanmax(values)) for values in curves if np.isfinite(values).any()]
        memory = max(1.0, *highest, *(run.summary.model.bytes for run in runs))
        seconds = max((sum(r.phases) for run in runs for r in run.summary.rounds), default=None)
    return [
        {
            "label": label,
            "color": run_charts.series_color(index),
            "logged_keys": len(run.logged.curves) + len(run.logged.more_keys),
            "rounds": views.rounds_of(run.summary, _MOST_ROUNDS),
            "memory": views.memory_table(run.summary, _MOST_CLIENTS, _MOST_CLIENTS // 2),
            "nodes": views.nodes_table(run.summary),
            "seconds": views.seconds_table(run, run_charts.PHASE_COLORS),
            "transfer": views.transfer_table(run.summary),
            "sites": views.sites_table(run.sites),
            "failures": views.failures_table(run.summary, _MOST_FAILED),
            "texts": views.texts_table(run.logged),
            "across_sites": views.across_sites_tables(run),
            "logged_charts": run_charts.logged_charts(run),
            "memory_charts": run_charts.memory_charts(run, memory),
            "seconds_chart": run_charts.seconds_chart(run, seconds),
        }
        for index, (run, label) in enumerate(zip(runs, labels, strict=True))
    ]


def _glance(runs: Sequence[RunRecord], labels: Sequence[str]) -> Table:
    colors = [run_charts.series_color(index) for index in range(len(runs))]
    table = views.runs_table(runs, [Link(label, "") for label in labels], colors)
    return views.with_spread(table) if len(run_charts.seed_groups(runs)) == 1 else table


def headline(run: RunRecord) -> str:
    """Return a sentence with the outcome of a run, its time and the server's memory."""
    summary = run.summary
    sites, took = counted(summary.clients, "site"), format_seconds(run.seconds)
    if run.status == "finished":
        first = f"{counted(summary.rounds_completed, 'round')} with {sites} in {took}"
    else:
        states = {"failed": "Failed", "stopped": "Stopped", "running": "Going on"}
        of = f" of {run.planned:,}" if run.planned else ""
        rounds = f"{summary.rounds_completed:,}{of} rounds"
        first = f"{states.get(run.status, 'Cut off')} after {rounds} with {sites}, {took}"
    over, model = summary.memory.server.over_idle, summary.model.bytes
    if not over or not model:
        return f"{first}."
    return (
        f"{first}; the server stayed within {format_bytes(over)} over idle for a model of "
        f"{format_bytes(model)}."
    )


def remarks_of(run: RunRecord) -> list[str]:
    """Return a sentence for each irregularity of a run, such as interruptions and warnings."""
    summary, history = run.summary, run.history
    remarks = list(run.notes)
    if summary.ended_early:
        remarks.append(f"Ended early: {summary.ended_early}.")
    if history.round_under_way is not None and run.status not in ("finished", "running"):
        remarks.append(f"Round {history.round_under_way} was under way; a resume does it again.")
    remarks += [
        f"The run was interrupted, and resumed {_place(event)}."
        for event in history.timeline.resumes
    ]
    if summary.benched:
        names = views.named(summary.benched)
        remarks.append(f"Asked no more, having failed too often: {names}.")
    return remarks + [f"Warning: {warning}" for warning in summary.warnings]


def _place(event: RunResumed) -> str:
    if not event.round and not event.effect:
        return "from its beginning"
    return f"after effect {event.effect} of its workflow, with the model of round {event.round}"


def facts(run: RunRecord) -> list[Fact]:
    """Return the figures at the top of the page of a run."""
    summary = run.summary
    memory, model, best = summary.memory, summary.model.bytes, summary.best
    figures = []
    if best is not None:
        note = f"best, after round {best.round:,}" if best.round else "best, of the initial model"
        figures.append(Fact(printable(best.metric), format_metric(best.value), note))
    spent = summary.privacy
    if spent is not None:
        note = f"{spent.clipped:.0%} of updates clipped to {spent.clip_norm:.4g}"
        figures.append(Fact("epsilon", format_epsilon(spent), note))
    figures.append(Fact("time", format_seconds(run.seconds), counted(len(summary.rounds), "round")))
    largest = max((client.over_idle for client in memory.clients.values()), default=0)
    sizes = {"server over idle": memory.server.over_idle, "largest client over idle": largest}
    for label, size in sizes.items():
        times = f"{size / model:.2f} times the model" if model >= _LARGE_MODEL else ""
        figures += [Fact(label, format_bytes(size), times)] if size else []
    if memory.peak_total_pss:
        note = "at most at one time, shared pages once"
        figures.append(Fact("all processes", format_bytes(memory.peak_total_pss), note))
    if memory.nodes:
        note = f"at most {format_bytes(max(memory.nodes.values()))} on one"
        figures.append(Fact("on the nodes", format_bytes(sum(memory.nodes.values())), note))
    down, up = summary.transfer.down, summary.transfer.up
    if down.bytes + up.bytes:
        note = f"in {counted(down.requests + up.requests, 'request')}"
        figures.append(Fact("moved", format_bytes(down.bytes + up.bytes), note))
    if model:
        tensors = counted(summary.model.tensors, "tensor")
        figures.append(Fact("model", format_bytes(model), f"in {tensors}"))
    return figures


def _where(run: RunRecord) -> str:
    parts = [str(run.path)]
    if run.history.timeline.sittings:
        began = time.gmtime(run.history.timeline.sittings[0][0])
        parts.append(f"began {time.strftime('%Y-%m-%d %H:%M UTC', began)}")
    if run.summary.seed or run.settings:
        parts.append(f"seed {run.summary.seed}")
    if run.summary.model.digest:
        parts.append(f"model digest {run.summary.model.digest}")
    return printable(" \N{MIDDLE DOT} ".join(parts))


def _metrics_note(runs: Sequence[RunRecord]) -> str:
    metrics = metrics_of([run.summary for run in runs])
    is_received = any(run.summary.evaluate == "received" for run in runs)
    notes = []
    if any(not metric.kind for metric in metrics):
        by = "who received it to train it" if is_received else "that evaluated"
        notes.append(f"Scores are of the model that a round ended with, by all sites {by}.")
    if is_received:
        notes.append(f"The last model has {UNSCORED}.")
    if any(metric.kind for metric in metrics):
        notes.append("Train values are what sites reported with their updates, weighted alike.")
    if len(runs) == 1 and runs[0].summary.best is not None:
        notes.append("The circle is the best round.")
    if any(len(group) > 1 for group in run_charts.seed_groups(runs)):
        notes.append(
            "Runs that differ in their seed alone are a mean with a band of one standard deviation."
        )
    return " ".join(notes)


def check_replaceable(path: Path) -> None:
    """Check that a file does not exist or is a page written by flstream.

    Raises:
        UsageError: the file is something else, or cannot be read.
    """
    head = _head(path)
    if head and _MARK.encode() not in head:
        raise UsageError(
            f"{path} was not made by flstream report, so it is left alone; "
            "name another file with --output"
        )


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def _refreshes(page: Path) -> bool:
    return _REFRESHES.encode() in _head(page)


def _write(path: Path, text: str) -> None:
    check_replaceable(path)
    try:
        write_whole(path, text)
    except OSError as error:
        raise SimulationError(
            f"the report {path} cannot be written: {error.strerror}; put that right, and make it "
            "with flstream report"
        ) from error


def _render(template: str, *, is_running: bool, **context: Any) -> str:
    return (
        _environment()
        .get_template(template)
        .render(
            context,
            generator=_GENERATOR,
            refresh=REFRESH_SECONDS if is_running else 0,
            version=flstream.__version__,
            made=time.strftime("%Y-%m-%d at %H:%M:%S UTC", time.gmtime()),
        )
    )


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
