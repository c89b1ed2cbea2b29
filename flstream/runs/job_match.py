"""Comparison of a job with the job of the run that it is to resume."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from flstream.errors import UsageError
from flstream.job import Job, JobError, Key, job_keys, render_job
from flstream.job.codecs import CODECS
from flstream.job.engine_section import EngineSection
from flstream.job.filters import FILTERS
from flstream.job.free_values import AS_WRITTEN
from flstream.job.hocon import read_hocon
from flstream.job.key import WORKFLOW
from flstream.job.keys import keys_in, workflow_sections
from flstream.job.problems import RefusedValueError
from flstream.job.values import render_value
from flstream.runs.job_files import changes, files_of, read_files
from flstream.runs.run_directory import RunDirectory

# Keys, besides rounds, whose value may change on resume. They do not affect a model's bits, and a
# run whose disk is full may have no other way to go on.
_FREE = {"checkpoints.keep", "tracking.type", "tracking.args"} | {
    f"engine.{name}" for name in EngineSection.model_fields
}
_NOT_GIVEN = "not given"
_FOLDER = re.compile(r'"/[^"]*/(?=[^"/]+\.py:)')


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
    there, here = read_files(run), files_of(job)
    files = there.keys() & here.keys()
    differences = _differences(job, run, files)
    changed = sorted({clause for key in files for clause in changes(there[key], here[key])})
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
    return list(_different_keys(job, hocon.values, run, files))


def _different_keys(
    job: Job, values: Mapping[str, Any], run: RunDirectory, files: Collection[str]
) -> Iterator[str]:
    """Yield every key that differs, with both values.

    Args:
        job: The job.
        values: Values of the run's job file.
        run: The run directory.
        files: Keys that name a file in both jobs; the file's path is not compared.
    """
    count = len(workflow_sections(values))
    if count != len(job.stages):
        yield f"{WORKFLOW} is {_stages(count)} there and {_stages(len(job.stages))} here"
    own = job_keys(job)
    for name, key in {**keys_in(values), **own}.items():
        if name in _FREE or (count != len(job.stages) and name.startswith(WORKFLOW)):
            continue
        there = as_written(key, values, run)
        here = key.render(key.value_in(job)) if name in own else _NOT_GIVEN
        if name in files:
            is_same = _inside_file(there) == _inside_file(here)
        elif key.kind in (FILTERS, CODECS):
            # Their files are compared by contents.
            is_same = _without_folders(here) == _without_folders(there)
        else:
            has_more_rounds = name == "rounds" and there.isdigit() and job.rounds > int(there)
            if has_more_rounds and len(job.stages) > 1:
                # The first would do more of them, and all that came after it be of no use.
                yield f"rounds is {there} there and {here} here, and counts for each of the stages"
                continue
            is_same = here == there or has_more_rounds
        if not is_same:
            yield f"{name} is {there} there and {here} here"


def _inside_file(rendered: str) -> str:
    """Return the name in a file that a value refers to; empty if it refers to the file itself."""
    return rendered.rpartition(":")[2] if ".py:" in rendered else ""


def _without_folders(rendered: str) -> str:
    """Return a value without the folders of the files that it names."""
    return _FOLDER.sub('"', rendered)


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


def as_written(key: Key, values: Mapping[str, Any], run: RunDirectory) -> str:
    """Return a key's value in a run's job file, rendered as in a resolved job.

    Args:
        key: The key.
        values: Values of the run's job file.
        run: The run directory.
    """
    if not key.is_in(values):
        # It is a workflow's own argument.
        return _NOT_GIVEN if key.kind is AS_WRITTEN else key.render(key.default)
    raw = key.find(values)
    try:
        return key.render(None if raw is None else key.parse(raw, run.path))
    except RefusedValueError:
        # A value that was valid then may be invalid now, such as the path of a moved script.
        return render_value(raw)
