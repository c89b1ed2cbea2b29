"""Folders of jobs: job.conf, and copies of the files that it needs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flstream.errors import UsageError
from flstream.job import make_job, render_values
from flstream.model.formats.opening import open_checkpoint
from flstream.recipe.initial_model import WEIGHTS

JOB_FILE = "job.conf"
_HEAD = "# Exported by flstream. Run it: flstream simulate "
_MOST_FILES = 2000


def write_job_folder(
    folder: Path, values: dict[str, Any], origin: Path, files: Sequence[Path]
) -> Path:
    """Write a job's folder, with the Python files below the folder that its paths start in.

    Args:
        folder: A new or empty folder, or one that this function has written.
        values: Values of the job file.
        origin: Folder in which their paths start.
        files: Further files that it is to have.

    Returns:
        The absolute path of the folder.

    Raises:
        JobError: The job has mistakes.
        UsageError: The folder has something else in it, or cannot be written.
    """
    folder = Path(os.path.abspath(folder))
    _check_replaceable(folder)
    with whole_folder(folder) as scratch:
        model = values.get("model", {})
        weights = model.pop(WEIGHTS, None)
        if weights is not None:
            model.setdefault("initial", str(weights.write(scratch / "initial")))
        make_job(values, origin, f"the job {values['name']}")
        copies = {path: path.relative_to(origin) for path in _python_files(origin, folder)}
        portable = _portable(values, origin, copies)
        if weights is not None:
            portable["model"]["initial"] = model["initial"].removeprefix(f"{scratch}/")
        taken = {Path(JOB_FILE): origin / JOB_FILE}
        for path, target in [
            *copies.items(),
            *((origin / each, Path(each.name)) for each in files),
        ]:
            if taken.setdefault(target, path) != path:
                raise UsageError(
                    f"{taken[target]} and {path} would both be {target} in the job's folder; "
                    "rename one"
                )
            (scratch / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, scratch / target)
        text = f"{_HEAD}{folder.name}\n{render_values(portable)}"
        (scratch / JOB_FILE).write_text(text, encoding="utf-8")
        shutil.rmtree(folder / "initial", ignore_errors=True)
    return folder


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a scratch folder, whose files come into a folder once all of them are written.

    Raises:
        UsageError: A file cannot be written or read.
    """
    above = next(each for each in Path(os.path.abspath(folder)).parents if each.is_dir())
    try:
        with tempfile.TemporaryDirectory(prefix=".export-", dir=above) as scratch:
            inner = Path(scratch) / folder.name
            inner.mkdir()
            yield inner
            shutil.copytree(inner, folder, dirs_exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder} cannot be written or read: {error.strerror or error}"
        ) from error


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


def _python_files(origin: Path, target: Path) -> Iterator[Path]:
    """Yield the Python files below a folder, but for those of other jobs and environments."""
    count = 0
    for where, folders, names in os.walk(origin):
        folders[:] = [name for name in folders if not _is_apart(Path(where, name), target)]
        for name in sorted(names):
            if name.endswith(".py"):
                count += 1
                yield Path(where, name)
        if count > _MOST_FILES:
            raise UsageError(
                f"{origin} has more than {_MOST_FILES} Python files below it, which an export "
                "would copy; put the job's files into a folder of their own"
            )


def _is_apart(folder: Path, target: Path) -> bool:
    if folder == target or folder.name.startswith(".") or folder.name == "__pycache__":
        return True
    return any((folder / name).exists() for name in (JOB_FILE, "pyvenv.cfg"))


def _portable(value: Any, origin: Path, copies: dict[Path, Path]) -> Any:
    """Return values with paths below a folder relative to it, and enter the files to copy."""
    if isinstance(value, Mapping):
        return {key: _portable(inner, origin, copies) for key, inner in value.items()}
    if isinstance(value, list):
        return [_portable(inner, origin, copies) for inner in value]
    if not isinstance(value, str):
        return value
    before, _, name = value.rpartition(":")
    where, suffix = (before, f":{name}") if before.endswith(".py") else (value, "")
    path = Path(os.path.abspath(origin / where)) if where and len(where) < 4096 else origin
    try:
        is_file = path.is_file()
    except (OSError, ValueError):
        is_file = False
    if not is_file:
        return value
    if not path.is_relative_to(origin):
        return f"{path}{suffix}"
    relative = path.relative_to(origin)
    copies[path] = relative
    if path.name.endswith(".index.json"):
        for shard in open_checkpoint(path).files:
            copies[shard] = relative.parent / shard.name
    return f"{relative}{suffix}"
