"""Page of one run or several, and result in a notebook."""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2
import numpy as np

import flstream
from flstream.errors import SimulationError, UsageError
from flstream.job.keys import which_key
from flstream.report import run_charts as charts
from flstream.report import views
from flstream.report.metrics import UNSCORED, last_values, metrics_of
from flstream.report.run_groups import all_keys, differing_keys, groups_of, varying_keys
from flstream.report.run_record import RunRecord, read_run
from flstream.report.site_errors import error_lists
from flstream.report.table import Link, format_cell
from flstream.report.text import counted, format_date, format_epsilon, format_metric, path_labels
from flstream.report.timeline import timeline
from flstream.runs.run_directory import RunDirectory
from flstream.runs.small_files import write_whole
from flstream.text import brief_names, natural_key, printable
from flstream.units import format_bytes, format_seconds

_SCORERS = {
    "task": "all sites that evaluated",
    "received": "all sites who received it to train it",
    "server": "the evaluator, on data of its own",
}
_MOST_DETAILED = 20  # runs of a comparison whose memory, time and sites are shown
_GENERATOR = "flstream report"
# Marks a page as written by flstream.
_MARK = f'<meta name="generator" content="{_GENERATOR}">'
# Heads of columns that mark a CSV file as written by flstream.
_CSV_FACTS = ("status", "rounds", "best", "seconds", "digest")
_CSV_MARK = ",".join(_CSV_FACTS)
_HEAD_BYTES = 4096


def write_page(
    runs: Sequence[Path],
    output: Path | None = None,
    *,
    is_running: bool | None = None,
    group_by: Sequence[str] = (),
    over: str = "seed",
) -> Path:
    """Write the page of a run, or of several to compare, and beside that a CSV of these.

    Args:
        runs: Paths of run directories.
        output: Path of the page; None for ``report.html`` in the run directory, or for several
            runs ``comparison.html`` in the working directory.
        is_running: Whether the runs are going on; None to find out by their locks.
        group_by: Dotted keys, or sections for all of theirs; runs with the same values are one
            line with a band. None of them for runs that differ in ``over`` alone.
        over: The key in which runs of a group differ.

    Returns:
        The path of the page.

    Raises:
        UsageError: A folder is not a run directory, no run has a key that is named, or an existing
            file is not a page of flstream.
        SimulationError: The page cannot be written.
    """
    own = RunDirectory(runs[0].absolute()).report if len(runs) == 1 else Path("comparison.html")
    path = output or own
    has_several = len(runs) > 1
    records = [read_run(run, is_running=is_running, is_one_of_many=has_several) for run in runs]
    keys = all_keys(records)
    group_by = [own for key in group_by for own in _keys_of(key, keys)]
    if over not in (*keys, "seed"):
        raise _unknown("--over", over, keys)
    table = path.with_suffix(".csv")
    if has_several and table == path:
        raise UsageError(f"{path} is to be a page, beside which a CSV file lies; name it .html")
    _check_replaceable(path)
    if has_several:
        _check_replaceable(table, _CSV_MARK)
    _write(path, run_page(records, path, group_by, over))
    if has_several:
        _write(table, _comparison_csv(records), _CSV_MARK)
    return path


def runs_below(folder: Path) -> list[Path]:
    """Return the directories of all runs below a folder, by name; not those in hidden folders.

    Raises:
        UsageError: There is none.
    """
    paths = (path.relative_to(folder) for path in folder.glob("**/events.jsonl"))
    # A sweep keeps failed runs that it began anew in a hidden folder.
    shown = (path for path in paths if not any(part.startswith(".") for part in path.parts))
    journals = sorted(shown, key=lambda path: natural_key(str(path)))
    if not journals:
        raise UsageError(
            f"{folder} is not a run directory, and no run lies below it: none has an events.jsonl; "
            "name the folder that flstream simulate made, such as runs/<job>-<time>, or runs"
        )
    return [folder / events.parent for events in journals]


def newest_first(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Sort runs by when they began, the newest first; those of a sweep stay together, by name."""
    groups: dict[Path, list[RunRecord]] = {}
    for run in runs:
        is_of_sweep = run.path.with_name("sweep.json").exists()
        groups.setdefault(run.path.parent if is_of_sweep else run.path, []).append(run)
    newest = sorted(groups.values(), key=lambda group: -max(run.begun for run in group))
    return [run for group in newest for run in group]


class PageRun(NamedTuple):
    """A run of a page, with its label and its colour in charts."""

    run: RunRecord
    label: str
    color: str


def run_page(
    runs: Sequence[RunRecord],
    path: Path | None = None,
    group_by: Sequence[str] = (),
    over: str = "seed",
) -> str:
    """Render the page of one run, or of several to compare, as HTML; links start at its path."""
    labels = path_labels([run.path for run in runs])
    only = runs[0] if len(runs) == 1 else None
    metrics = metrics_of([run.summary for run in runs])
    groups = groups_of(runs, labels, group_by, over)
    colors = {at: group.color for group in groups for at in group.runs}
    folder = None if path is None else path.absolute().parent
    names = [Link(label, _address(run, folder)) for label, run in zip(labels, runs, strict=True)]
    scored_by = {run.summary.evaluate for run in runs}
    memory_top, seconds_top = (None, None) if only else _common_tops(runs)
    return _render(
        "page.html",
        run=only,
        title=printable(only.name) if only else _title(runs),
        parts=[PageRun(run, labels[at], colors[at]) for at, run in enumerate(runs)],
        names=names,
        groups=groups,
        drawn=sum(bool(group.color) for group in groups),
        over=", ".join(varying_keys(runs, groups)) or "nothing",
        axes=charts.axes_of(runs),
        has_details=len(runs) <= _MOST_DETAILED,
        has_scores=any(not metric.kind for metric in metrics),
        has_train_values=any(metric.kind for metric in metrics),
        scorers=[words for by, words in _SCORERS.items() if by in scored_by],
        is_received="received" in scored_by,
        memory_top=memory_top,
        seconds_top=seconds_top,
    )


def _title(runs: Sequence[RunRecord]) -> str:
    jobs = [*dict.fromkeys(run.name for run in runs)]
    return f"{brief_names(jobs)}: {len(runs)} runs side by side"


def _address(run: RunRecord, folder: Path | None) -> str:
    """Return the relative address of a run's own page, if it has one."""
    page = RunDirectory(run.path).report
    is_linked = folder is not None and page.exists()
    return quote(os.path.relpath(page, folder)) if is_linked else ""


def _comparison_csv(runs: Sequence[RunRecord]) -> str:
    """Return a line for each run: what it differs in, how it ended, and its scores.

    A setting that a run does not have is empty.
    """
    keys, metrics = differing_keys(runs), metrics_of([run.summary for run in runs])
    has_times = any(run.simulated_seconds is not None for run in runs)
    times = ("simulated_seconds", "simulated_seconds_to_best") if has_times else ()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", *keys, *_CSV_FACTS, *times, *(metric.title for metric in metrics)])
    for run in runs:
        summary, last = run.summary, last_values(run.summary)
        best = "" if summary.best is None else summary.best.value
        facts = [run.status, summary.rounds_completed, best, run.seconds, summary.model.digest]
        facts += (run.simulated_seconds, run.seconds_to_best) if has_times else ()
        scores = [last.get(metric, "") for metric in metrics]
        values = [run.values.get(key, "").strip('"') for key in keys]
        writer.writerow([str(run.path), *values, *facts, *scores])
    return text.getvalue()


def _common_tops(runs: Sequence[RunRecord]) -> tuple[float, float | None]:
    """Return the upper ends of the axes that several runs' charts share."""
    curves = [values for run in runs for values in run.over_idle.values()]
    highest = [float(np.nanmax(values)) for values in curves if np.isfinite(values).any()]
    memory = max(1.0, *highest, *(run.summary.model.bytes for run in runs))
    return memory, max((sum(r.phases) for run in runs for r in run.summary.rounds), default=None)


def run_cell(path: Path) -> str:
    """Render the result of a run for a notebook, as HTML.

    Raises:
        UsageError: The folder is not a run directory, or cannot be read.
    """
    run = read_run(path)
    return _render("cell.html", run=run)


def _keys_of(named: str, keys: Sequence[str]) -> list[str]:
    """Return the keys that ``--group-by`` names: one, or all of a section.

    Raises:
        UsageError: No run has such a key.
    """
    own = [key for key in keys if key == named or key.startswith((f"{named}.", f"{named}["))]
    if not own:
        raise _unknown("--group-by", named, keys)
    return own


def _unknown(option: str, named: str, keys: Sequence[str]) -> UsageError:
    nearest = which_key(named, keys) or "name a dotted key, such as workflow.type"
    return UsageError(f"{option} {named}: no run has this setting; {nearest}")


def _check_replaceable(path: Path, mark: str = _MARK) -> None:
    """Raise a UsageError if a file exists that lacks the mark of those of flstream."""
    head = _head(path)
    if head and mark.encode() not in head:
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


def _write(path: Path, text: str, mark: str = _MARK) -> None:
    _check_replaceable(path, mark)
    try:
        write_whole(path, text)
    except OSError as error:
        raise SimulationError(
            f"the report {path} cannot be written: {error.strerror}; put that right, and make it "
            "with flstream report"
        ) from error


def _render(template: str, **context: Any) -> str:
    return (
        environment()
        .get_template(template)
        .render(
            context,
            generator=_GENERATOR,
            version=flstream.__version__,
            made=time.strftime("%Y-%m-%d at %H:%M:%S UTC", time.gmtime()),
        )
    )


@cache
def environment() -> jinja2.Environment:
    """Return the environment of templates, whose ``show`` renders a table."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    formats = (format_bytes, format_seconds, format_date, format_metric, format_epsilon)
    for text in (printable, counted, brief_names, format_cell, *formats):
        environment.filters[text.__name__] = text
    environment.globals |= {"views": views, "charts": charts, "unscored": UNSCORED}
    environment.globals |= {"error_lists": error_lists, "groups_of": groups_of}
    environment.globals["timeline"] = timeline
    return environment
