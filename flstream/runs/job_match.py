"""Comparison of a job and its files with those of the run to resume."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from flstream.errors import CheckpointError, UsageError
from flstream.job import Job, JobError, render_job
from flstream.job.hocon import read_hocon
from flstream.job.imports import own_files
from flstream.job.keys import WORKFLOW, leaves
from flstream.job.load import FilesByKey, JobFile, JobFiles
from flstream.job.values import render_value
from flstream.runs.run_directory import RunDirectory

# Keys and sections, besides rounds, whose value may change on resume. They do not affect a
# model's bits, and a run whose disk is full may have no other way to go on. What model.base.hf
# gives is compared by its digest.
_FREE = ("checkpoints.keep", "memory_limit", "model.base.hf", "tracking.", "engine.")
# The path of a file with code, before the name in it. Files are compared by contents.
_FILE = re.compile(r'"/[^"]*\.py:')
_READ_BYTES = 1 << 20
# Digits of a digest in messages, enough to distinguish two files.
_SHOWN = 12


def files_of(job: Job) -> FilesByKey:
    """Read a job's files: its code with imported files, and its initial model.

    Data files that the code reads are not included, as only the code knows them.
    """
    traces = None if job.network.traces is None else job.network.traces.path
    named = {
        "train.script": job.train.script,
        "evaluate.script": job.evaluate.script,
        "model.initial": job.model.initial,
        "network.traces": traces,
        **{f"devices.{key}": file.path for key, file in job.devices.files.items()},
        # A tracker changes nothing of the run.
        **{code.key: code.file for code in job.own_code() if code.key != "tracking.type"},
    }
    files = {}
    for key, path in named.items():
        if path is not None:
            is_code = path.suffix == ".py"
            paths = own_files(path, job.folder) if is_code else [path, *_shards(path)]
            files[key] = [_described(file, path.parent) for file in paths]
    return files


def render_files(job: Job) -> str:
    """Return the text of job.files.json."""
    files = JobFiles(str(job.folder), files_of(job))
    return msgspec.json.format(msgspec.json.encode(files), indent=2).decode() + "\n"


def _shards(path: Path) -> list[Path]:
    """Return the files that a sharded checkpoint's index names; none for other files."""
    if path.suffix != ".json":
        return []
    from flstream.model.formats import shard_paths

    try:
        return shard_paths(path)
    except CheckpointError as error:
        raise UsageError(str(error)) from error


def _described(path: Path, folder: Path) -> JobFile:
    try:
        status = path.stat()
        size, digest = _content(path, status.st_ino, status.st_ctime_ns)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}; put it back, or make it readable"
        ) from error
    return JobFile(os.path.relpath(path, folder), size, digest)


@lru_cache(maxsize=256)  # a sweep asks for the same files for each of its runs
def _content(path: Path, inode: int, changed_ns: int) -> tuple[int, str]:
    digest, size = xxhash.xxh3_128(), 0
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
            size += len(data)
    return size, digest.hexdigest()


def check_same_job(job: Job, run: RunDirectory) -> None:
    """Check that a job is a run's job, by its keys and the contents of its files.

    Only ``rounds`` (to more), ``checkpoints.keep``, ``memory_limit``, ``tracking`` and ``engine``
    may differ. The files may have been moved.
    """
    keys, changes = differences(job, run)
    message = "; ".join([*keys, *changes])
    if keys:
        raise UsageError(
            f"the run in {run.path} was made by another job: {message}; give the job it was made "
            "by (its rounds may be more, and its checkpoints.keep, memory_limit, tracking and "
            "engine others), or leave out --resume to start a new run"
        )
    if changes:
        raise UsageError(
            f"the run in {run.path} was made with other files: {message}; put back what it was "
            "made with, or leave out --resume to start a new run"
        )


def differences(job: Job, run: RunDirectory) -> tuple[list[str], list[str]]:
    """Return a clause for each key, and one for each file, in which a job differs from a run's.

    Raises:
        UsageError: What the run knows of its job or of its files is damaged.
    """
    try:
        before = msgspec.json.decode(run.job_files.read_bytes(), type=JobFiles).files
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{run.job_files} cannot be read: {error}; put it back from a copy, or leave out "
            "--resume to start a new run"
        ) from error
    now = files_of(job)
    both = before.keys() & now.keys()
    changes = {clause for key in both for clause in _changes(before[key], now[key])}
    return different_keys(job, run, both), sorted(changes)


def different_keys(job: Job, run: RunDirectory, files: Collection[str] = ()) -> list[str]:
    """Return a clause for each key in which a job differs from a run's, with both values.

    Args:
        job: The job.
        run: The run directory.
        files: Keys that name a file in both, whose path is not compared.

    Raises:
        JobError: The run's job file is damaged.
    """
    text = b""
    with suppress(OSError):
        text = run.job_file.read_bytes()
    if text == render_job(job).encode():  # a job's own text needs no parser
        return []
    hocon = read_hocon(run.job_file)
    if hocon.problems:
        raise JobError(run.job_file, hocon.problems)
    return list(_different_keys(job, hocon.values, files))


def _changes(before: Sequence[JobFile], now: Sequence[JobFile]) -> Iterator[str]:
    """Yield a clause for each key whose files have changed since the run began."""
    source = now[0].name  # which the key names; it may have had another name
    old = {file.name if place else source: file for place, file in enumerate(before)}
    for file in now:
        earlier = old.pop(file.name, None)
        if earlier is None:
            yield f"{file.name}, which {source} imports, is new"
        elif earlier.digest != file.digest:
            digests = f"digest {earlier.digest[:_SHOWN]} there, {file.digest[:_SHOWN]} here"
            yield f"{file.name} was changed since the run began ({digests})"
    yield from (f"{name}, which {source} imported, is gone" for name in old)


def _different_keys(job: Job, values: Mapping[str, Any], files: Collection[str]) -> Iterator[str]:
    """Yield a clause for each key that differs from the values of the run's job file."""
    written = job.written()
    sections = [settings.get(WORKFLOW) for settings in (values, written)]
    count, job_count = (len(part) if isinstance(part, list) else 1 for part in sections)
    if count != job_count:
        stages = ("one section" if n == 1 else f"a list of {n}" for n in (count, job_count))
        yield f"{WORKFLOW} is {next(stages)} there and {next(stages)} here"
    run_values, job_values = dict(leaves(values)), dict(leaves(written))
    for name in [key for key, value in {**run_values, **job_values}.items() if value != {}]:
        if name.startswith(_FREE) or (count != job_count and name.startswith(WORKFLOW)):
            continue
        old, new = (
            render_value(flat_values[name]) if name in flat_values else "not given"
            for flat_values in (run_values, job_values)
        )
        differs = f"{name} is {old} there and {new} here"
        if name == "rounds" and old.isdigit() and job.rounds > int(old):
            if len(job.stages) > 1:
                # The first would do more of them, and all that came after it be of no use.
                yield f"{differs}, and counts for each of the stages"
        elif name in files and ".py:" not in old + new:
            pass  # of a file alone, the path is all
        elif _FILE.sub('"', old) != _FILE.sub('"', new):
            yield differs
