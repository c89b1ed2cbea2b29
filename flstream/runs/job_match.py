"""Comparison of a job with the job of the run that it is to resume."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from flstream.errors import UsageError
from flstream.job import Job, JobError, render_job
from flstream.job.engine_section import EngineSection
from flstream.job.hocon import read_hocon
from flstream.job.keys import WORKFLOW, flat
from flstream.job.values import render_value
from flstream.runs.job_files import changes, files_of, read_files
from flstream.runs.run_directory import RunDirectory

# Keys, besides rounds, whose value may change on resume. They do not affect a model's bits, and a
# run whose disk is full may have no other way to go on.
_FREE = {"checkpoints.keep", "tracking.type", "tracking.args"} | {
    f"engine.{name}" for name in EngineSection.model_fields
}
_NOT_GIVEN = "not given"
# The path of a file with code, before the name in it. Files are compared by contents.
_FILE = re.compile(r'"/[^"]*\.py:')


def check_same_job(job: Job, run: RunDirectory) -> None:
    """Check that a job is that of a run, by its keys and by the contents of its files.

    Only ``rounds`` (to more), ``checkpoints.keep``, ``tracking`` and ``engine`` may differ. The
    files may have been moved.

    Args:
        job: The job.
        run: The run directory.

    Raises:
        UsageError: It is another job; the message names every key that differs, with both values,
            and every file that was changed.
        JobError: The run's job file cannot be read.
    """
    before, now = read_files(run), files_of(job)
    files = before.keys() & now.keys()
    differences = _differences(job, run, files)
    changed = sorted({clause for key in files for clause in changes(before[key], now[key])})
    if differences or changed:
        raise UsageError(_sentence(run, differences, changed))


def _differences(job: Job, run: RunDirectory, files: Collection[str]) -> list[str]:
    """Describe every key that differs, with both values; a job's own text needs no parser."""
    with suppress(OSError):
        if run.job_file.read_bytes() == render_job(job).encode():
            return []
    hocon = read_hocon(run.job_file)
    if hocon.problems:
        raise JobError(run.job_file, hocon.problems)
    return list(_different_keys(job, hocon.values, files))


def _different_keys(job: Job, values: Mapping[str, Any], files: Collection[str]) -> Iterator[str]:
    """Yield every key that differs, with both values.

    Args:
        job: The job.
        values: Values of the run's job file.
        files: Keys that name a file in both jobs; the file's path is not compared.
    """
    written = job.written()
    count, job_count = _sections(values), _sections(written)
    if count != job_count:
        yield f"{WORKFLOW} is {_stages(count)} there and {_stages(job_count)} here"
    run_values, job_values = dict(flat(values)), dict(flat(written))
    for name in {**run_values, **job_values}:
        if name in _FREE or (count != job_count and name.startswith(WORKFLOW)):
            continue
        old, new = (
            render_value(flat_values[name]) if name in flat_values else _NOT_GIVEN
            for flat_values in (run_values, job_values)
        )
        has_more_rounds = name == "rounds" and old.isdigit() and job.rounds > int(old)
        if has_more_rounds and len(job.stages) > 1:
            # The first would do more of them, and all that came after it be of no use.
            yield f"rounds is {old} there and {new} here, and counts for each of the stages"
        elif not (has_more_rounds or _is_same(old, new, is_file=name in files)):
            yield f"{name} is {old} there and {new} here"


def _sections(values: Mapping[str, Any]) -> int:
    """Return the number of workflows of a job file."""
    sections = values.get(WORKFLOW)
    return len(sections) if isinstance(sections, list) else 1


def _is_same(old: str, new: str, *, is_file: bool) -> bool:
    """Whether two values are the same but for paths of files; of a file alone, the path is all."""
    if is_file and ".py:" not in old + new:
        return True
    return _FILE.sub('"', old) == _FILE.sub('"', new)


def _stages(count: int) -> str:
    return "one section" if count == 1 else f"a list of {count}"


def _sentence(run: RunDirectory, differences: Sequence[str], changed: Sequence[str]) -> str:
    message = "; ".join([*differences, *changed])
    if not differences:
        return (
            f"the run in {run.path} was made with other files: {message}; put back what it was "
            "made with, or leave out --resume to start a new run"
        )
    return (
        f"the run in {run.path} was made by another job: {message}; give the job it was made by "
        "(its rounds may be more, and its checkpoints.keep, tracking and engine others), or leave "
        "out --resume to start a new run"
    )
