"""Digests of a job's files at the beginning of its run: job.files.json."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import xxhash

from flstream.errors import CheckpointError, UsageError
from flstream.job import Job
from flstream.job.imports import own_files
from flstream.runs.run_directory import RunDirectory

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


def read_files(run: RunDirectory) -> FilesByKey:
    """Read a run's job.files.json.

    Raises:
        UsageError: It is missing or damaged, or cannot be read.
    """
    try:
        text = run.job_files.read_bytes()
        return msgspec.json.decode(text, type=dict[str, list[JobFile]])
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{run.job_files} cannot be read: {error}; put it back from a copy, or leave out "
            "--resume to start a new run"
        ) from error


def changes(before: Sequence[JobFile], now: Sequence[JobFile]) -> Iterator[str]:
    """Yield a clause for each change of a key's files since the run began.

    Args:
        before: Files of the key when the run began; the first may have another name now.
        now: Files of the key now.
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
