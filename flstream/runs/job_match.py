"""Comparison of a job and its files with the job of the run that it is to resume."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from flstream.errors import CheckpointError, UsageError
from flstream.job import Job, JobError, render_job
from flstream.job.hocon import read_hocon
from flstream.job.imports import own_files
from flstream.job.keys import WORKFLOW, flat
from flstream.job.sections import EngineSection
from flstream.job.values import render_value
from flstream.runs.run_directory import RunDirectory

# Keys, besides rounds, whose value may change on resume. They do not affect a model's bits, and a
# run whose disk is full may have no other way to go on.
_FREE = {"checkpoints.keep", "tracking.type", "tracking.args"} | {
    f"engine.{name}" for name in EngineSection.model_fields
}
_NOT_GIVEN = "not given"
# The path of a file with code, before the name in it. Files are compared by contents.
_FILE = re.compile(r'"/[^"]*\.py:')
_READ_BYTES = 1 << 20
# Digits of a digest in messages, enough to distinguish two files.
_SHOWN = 12


class JobFile(msgspec.Struct, frozen=True):
    """A file's name and content.

    Attributes:
        name: Path relative to the folder of the file that the job file's key names.
        bytes: Length in bytes.
        digest: xxh3-128 digest of the content, 32 hexadecimal digits.
    """

    name: str
    bytes: int
    digest: str


FilesByKey = Mapping[str, Sequence[JobFile]]
"""Files by key of the job file: the file that the key names, then those that it imports."""


def files_of(job: Job) -> FilesByKey:
    """Read the files that a job names: its code with the files it imports, and its initial model.

    Data files that the code reads are not included, as only the code knows them.

    Raises:
        UsageError: A file cannot be read.
    """
    files: dict[str, Sequence[JobFile]] = {}
    for key, path in _named_files(job):
        is_code = path.suffix == ".py"
        paths = own_files(path, job.folder) if is_code else [path, *_shards(path)]
        files[key] = [_described(file, path.parent) for file in paths]
    return files


def render_files(job: Job) -> str:
    """Return the text of job.files.json."""
    return msgspec.json.format(msgspec.json.encode(files_of(job)), indent=2).decode() + "\n"


def _read_files(run: RunDirectory) -> FilesByKey:
    try:
        text = run.job_files.read_bytes()
        return msgspec.json.decode(text, type=dict[str, list[JobFile]])
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{run.job_files} cannot be read: {error}; put it back from a copy, or leave out "
            "--resume to start a new run"
        ) from error


def _changes(before: Sequence[JobFile], now: Sequence[JobFile]) -> Iterator[str]:
    """Yield a clause for each change of a key's files since the run began.

    The first, which the key names, may have another name by now.
    """
    (old, *imported), (new, *imported_now) = before, now
    yield from _change(new.name, old, new)
    by_name = {file.name: file for file in imported}
    for file in imported_now:
        if file.name in by_name:
            yield from _change(file.name, by_name[file.name], file)
        else:
            yield f"{file.name}, which {new.name} imports, is new"
    for name in by_name.keys() - {file.name for file in imported_now}:
        yield f"{name}, which {new.name} imported, is gone"


def _change(name: str, old: JobFile, new: JobFile) -> Iterator[str]:
    if (old.bytes, old.digest) != (new.bytes, new.digest):
        digests = f"digest {old.digest[:_SHOWN]} there, {new.digest[:_SHOWN]} here"
        yield f"{name} was changed since the run began ({digests})"


def _named_files(job: Job) -> Iterator[tuple[str, Path]]:
    """Yield each key of a job that names a file, with the file's path."""
    traces = None if job.network.traces is None else job.network.traces.path
    for key, path in (
        ("train.script", job.train.script),
        ("model.initial", job.model.initial),
        ("network.traces", traces),
    ):
        if path is not None:
            yield key, path
    for code in job.own_code():
        # A tracker changes nothing of the run.
        if code.file is not None and code.key != "tracking.type":
            yield code.key, code.file


def _shards(path: Path) -> list[Path]:
    """Return the files that the index of a sharded checkpoint names; none for other files."""
    if path.suffix != ".json":
        return []
    from flstream.model.formats.shards import shard_paths

    try:
        return shard_paths(path)
    except CheckpointError as error:
        raise UsageError(str(error)) from error


def _described(path: Path, folder: Path) -> JobFile:
    digest, size = xxhash.xxh3_128(), 0
    try:
        with path.open("rb") as file:
            while data := file.read(_READ_BYTES):
                digest.update(data)
                size += len(data)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}; put it back, or make it readable"
        ) from error
    return JobFile(os.path.relpath(path, folder), size, digest.hexdigest())


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
    before, now = _read_files(run), files_of(job)
    files = before.keys() & now.keys()
    differences = _differences(job, run, files)
    changed = sorted({clause for key in files for clause in _changes(before[key], now[key])})
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
