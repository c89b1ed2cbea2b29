"""Folders of jobs: job.conf, and copies of the files that it needs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flstream.errors import UsageError
from flstream.job import render_values

JOB_FILE, INITIAL = "job.conf", "initial"
_HEAD = "# Exported by flstream. Run it: flstream simulate "
_APART = (JOB_FILE, "pyvenv.cfg")  # files of folders that are another job's, or an environment


def check_replaceable(folder: Path) -> None:
    """Refuse a folder that has something else in it than an exported job."""
    try:
        has_files = folder.exists() and any(folder.iterdir())
        is_other = has_files and not (folder / JOB_FILE).read_text().startswith(_HEAD)
    except (OSError, UnicodeDecodeError):
        is_other = True
    if is_other:
        raise UsageError(
            f"{folder} has something else in it than an exported job; name a new folder"
        )


def copy_job(
    values: dict[str, Any], origin: Path, scratch: Path, files: Sequence[Path], target: Path
) -> None:
    """Write job.conf into a folder, with all Python files of a job and what the values name."""
    copies = {path: path.relative_to(origin) for path in _python_files(origin, target)}
    copies |= {path: Path(path.name) for path in files}
    portable = _portable(_portable(values, scratch, {}), origin, copies)
    taken = {Path(JOB_FILE): origin / JOB_FILE}
    for path, place in copies.items():
        if taken.setdefault(place, path) != path:
            both = f"{taken[place]} and {path}"
            raise UsageError(f"{both} would both be {place} in the job's folder; rename one")
        (scratch / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, scratch / place)
    text = f"{_HEAD}{target.name}\n{render_values(portable)}"
    (scratch / JOB_FILE).write_text(text, encoding="utf-8")
    shutil.rmtree(target / INITIAL, ignore_errors=True)  # of an earlier export


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Make a folder whole: yield a scratch folder, whose files come into it at the end.

    Raises:
        UsageError: A file cannot be written or read.
    """
    above = next(path for path in Path(os.path.abspath(folder)).parents if path.is_dir())
    try:
        with tempfile.TemporaryDirectory(prefix=".export-", dir=above) as scratch:
            inner = Path(scratch) / "job"
            inner.mkdir()
            yield inner
            shutil.copytree(inner, folder, dirs_exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder} cannot be written or read: {error.strerror or error}"
        ) from error


def _python_files(origin: Path, target: Path) -> Iterator[Path]:
    """Yield the Python files below a folder, but for those of other jobs and environments."""
    for where, folders, names in os.walk(origin):
        own = [name for name in folders if name[0] != "." and name != "__pycache__"]
        inner = [Path(where, name) for name in own]
        apart = [p for p in inner if p == target or any((p / name).exists() for name in _APART)]
        folders[:] = [path.name for path in inner if path not in apart]
        yield from (Path(where, name) for name in sorted(names) if name.endswith(".py"))


def _portable(value: Any, origin: Path, copies: dict[Path, Path]) -> Any:
    """Return values with paths below a folder relative to it, and enter the files to copy."""
    if isinstance(value, dict):
        return {key: _portable(inner, origin, copies) for key, inner in value.items()}
    if isinstance(value, list):
        return [_portable(inner, origin, copies) for inner in value]
    before, _, name = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    where, suffix = (before, f":{name}") if before.endswith(".py") else (value, "")
    path = Path(os.path.abspath(origin / where)) if isinstance(where, str) else origin
    if not os.path.isfile(path):
        return value
    if not path.is_relative_to(origin):
        return f"{path}{suffix}"
    copies[path] = path.relative_to(origin)
    return f"{copies[path]}{suffix}"
