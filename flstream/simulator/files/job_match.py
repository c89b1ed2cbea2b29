"""Whether a run that is to go on was made by the job that is given now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticCustomError

from flstream.errors import UsageError
from flstream.job import Job, JobError, Key, job_keys
from flstream.job.hocon import read_hocon
from flstream.job.values import render_value
from flstream.simulator.files.run_directory import RunDirectory

_ABSENT = object()

# What a run may go on with another value of, besides its rounds. It decides no bit of a model, and
# a run whose disk is full may have no other way on.
_FREE = {"checkpoints.keep"}


def check_same_job(job: Job, run: RunDirectory) -> None:
    """Compare a job with that of a run, key by key.

    It may have more rounds, and keep more or fewer checkpoints from now on; nothing else.

    Raises:
        UsageError: it is another job; the message has every key that differs, with both values.
        JobError: the run's own job file cannot be read.
    """
    hocon = read_hocon(run.job_file)
    if hocon.problems:
        raise JobError(run.job_file, hocon.problems)
    differences = []
    for key in job_keys().values():
        there = as_written(key, hocon.values, run)
        here = key.render(key.value_in(job))
        has_more_rounds = key.name == "rounds" and there.isdigit() and job.rounds > int(there)
        if here != there and not has_more_rounds and key.name not in _FREE:
            differences.append(f"{key.name} is {there} there and {here} here")
    if differences:
        raise UsageError(
            f"the run in {run.path} was made by another job: {'; '.join(differences)}; give the "
            "job it was made by (its rounds may be more, and its checkpoints.keep another), or "
            "leave out --resume to start a new run"
        )


def as_written(key: Key, values: Mapping[str, Any], run: RunDirectory) -> str:
    """A key's value in a run's job file, in the words in which a job is written out."""
    raw: Any = values
    for name in key.path:
        raw = raw.get(name, _ABSENT) if isinstance(raw, Mapping) else _ABSENT
    if raw is _ABSENT:
        # The version that made the run did not know the key.
        return key.render(key.default)
    try:
        return key.render(None if raw is None else key.rule.parse(raw, run.path))
    except PydanticCustomError:
        # What was right then need not be now: a script may have been moved.
        return render_value(raw)
