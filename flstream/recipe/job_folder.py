"""Export of a job as a folder: job.conf, and copies of the files that it names."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flstream.errors import UsageError
from flstream.job import Job, render_values
from flstream.job.checks import workflow_name
from flstream.job.code import package_root
from flstream.job.keys import WORKFLOW, flat, keys_in
from flstream.job.values import nested
from flstream.job.workflow_code import DEFAULT_WORKFLOW
from flstream.recipe.initial_model import WEIGHTS, Weights
from flstream.runs.job_files import paths_of
from flstream.simulation.export_files import BESIDE

JOB_FILE = "job.conf"
_INITIAL = "initial"
_HEAD = "# Exported by flstream. Run it: flstream simulate "

Resolve = Callable[[Mapping[str, Any], Callable[[Weights], Path]], Job]
"""Resolves a job with these keys of ``clients``, and a function that writes initial weights."""


def write_job_folder(
    folder: Path, resolve: Resolve, clients: Mapping[str, Any], files: Sequence[Path]
) -> Path:
    """Write a job's folder.

    Args:
        folder: A new or empty folder, or one that this function has written.
        resolve: Resolves the job.
        clients: Keys of the section ``clients``.
        files: Further files that it is to have.

    Returns:
        The absolute path of the folder.

    Raises:
        JobError: The job has mistakes.
        UsageError: The folder has something else in it, or cannot be written.
    """
    folder = Path(os.path.abspath(folder))
    _check_replaceable(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: an earlier export stays as it is if this one fails.
        with tempfile.TemporaryDirectory(prefix=".export-", dir=folder.parent) as scratch:
            made = _write(Path(scratch) / folder.name, resolve, clients, files)
            shutil.rmtree(folder / _INITIAL, ignore_errors=True)
            shutil.copytree(made, folder, dirs_exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder} cannot be written or read: {error.strerror or error}"
        ) from error
    return folder


def _write(
    folder: Path, resolve: Resolve, clients: Mapping[str, Any], files: Sequence[Path]
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    job = resolve(clients, lambda weights: weights.write(folder / _INITIAL))
    places = _places(job, folder, files)
    for source, target in places.items():
        if source != target:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    text = render_values(_values(job, {a: b.relative_to(folder) for a, b in places.items()}))
    (folder / JOB_FILE).write_text(f"{_HEAD}{folder.name}\n{text}", encoding="utf-8")
    return folder


def _check_replaceable(folder: Path) -> None:
    try:
        if not folder.exists() or not any(folder.iterdir()):
            return
        with (folder / JOB_FILE).open(encoding="utf-8") as file:
            if file.readline().startswith(_HEAD):
                return
    except (OSError, UnicodeDecodeError):
        pass
    raise UsageError(f"{folder} has something else in it than an exported job; name a new folder")


def _places(job: Job, folder: Path, files: Sequence[Path]) -> dict[Path, Path]:
    """Return where each file of a job goes, by its path.

    Raises:
        UsageError: Two files would go to one place.
    """
    places: dict[Path, Path] = {}
    for paths in paths_of(job).values():
        root = package_root(paths[0])
        whole = [*paths, *_packages(paths, job.folder if _is_below(paths[0], job) else root)]
        places |= {path: folder / _relative(path, root, job) for path in whole}
    initial = job.model.initial
    if initial is not None:
        # With a pretrained model's configuration, for whoever exports the result.
        there = initial.parent.iterdir()
        kept = [path for path in there if path.suffix == ".json" or path.name in BESIDE]
        for path in [initial, *kept] if initial.name == WEIGHTS else []:
            places[path] = folder / _INITIAL / path.name
    for path in files:
        places[job.folder / path] = folder / path.name
    taken = {folder / JOB_FILE: Path(JOB_FILE)}
    for source, target in places.items():
        if taken.setdefault(target, source) != source:
            raise UsageError(
                f"{taken[target]} and {source} would both be {target.name} in the job's folder; "
                "rename one, or put both below the folder of the script"
            )
    return places


def _packages(paths: Sequence[Path], folder: Path) -> list[Path]:
    """Return the files that make packages of the folders of these, below the job's folder."""
    folders = dict.fromkeys(
        each
        for path in paths
        if path.suffix == ".py"
        for each in path.parents
        if each.is_relative_to(folder) and each != folder
    )
    return [each / "__init__.py" for each in folders if (each / "__init__.py").is_file()]


def _is_below(path: Path, job: Job) -> bool:
    return path.is_relative_to(job.folder)


def _relative(path: Path, root: Path, job: Job) -> Path:
    """Return a file's path in the exported folder: below the job's folder, or else a package's."""
    if _is_below(path, job):
        return path.relative_to(job.folder)
    if not path.is_relative_to(root):
        raise UsageError(
            f"{path}, which the job imports, lies outside of {job.folder} and of {root}; put it "
            "below the folder of the job"
        )
    return path.relative_to(root)


def _values(job: Job, places: Mapping[Path, Path]) -> dict[str, Any]:
    """Return the values of a job that are not defaults, with paths in the exported folder."""
    written = job.written()
    keys = keys_in(written)
    found = nested(
        {
            name: _portable(value, places)
            for name, value in flat(written)
            if name not in keys or keys[name].required or value != keys[name].default
        }
    )
    if len(job.stages) > 1:
        names = [workflow_name(index, len(job.stages)) for index in range(len(job.stages))]
        found[WORKFLOW] = [{"type": DEFAULT_WORKFLOW, **found.pop(name, {})} for name in names]
    return found


def _portable(value: Any, places: Mapping[Path, Path]) -> Any:
    if isinstance(value, list):
        return [_portable(each, places) for each in value]
    if isinstance(value, Mapping):
        return {name: _portable(each, places) for name, each in value.items()}
    if isinstance(value, str) and Path(value) in places:
        return str(places[Path(value)])
    return _portable_place(value, places)


def _portable_place(value: Any, places: Mapping[Path, Path]) -> Any:
    where, colon, name = str(value).rpartition(":")
    return f"{places[Path(where)]}:{name}" if colon and Path(where) in places else value
