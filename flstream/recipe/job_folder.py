"""Folders of jobs: job.conf, and copies of the files that it needs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flstream.errors import UsageError
from flstream.job import render_values

JOB_FILE = "job.conf"
_APART = (JOB_FILE, "pyvenv.cfg")  # files of folders that are another job's, or an environment


@contextmanager
def whole_folder(folder: Path, replaced: str = "") -> Iterator[Path]:
    """Yield a scratch folder; move its files into a new or empty folder at the end.

    It may have files if its job file begins with a text.
    """
    above = next(path for path in Path(os.path.abspath(folder)).parents if os.path.isdir(path))
    job_file = folder / JOB_FILE
    try:
        if folder.exists() and any(folder.iterdir()):
            text = job_file.read_text(errors="replace") if job_file.is_file() else ""
            if not replaced or not text.startswith(replaced):
                raise UsageError(f"{folder} is not empty; name a new folder")
        with tempfile.TemporaryDirectory(prefix=".export-", dir=above) as scratch:
            inner = Path(scratch) / "job"
            inner.mkdir()
            yield inner
            shutil.copytree(inner, folder, dirs_exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder} cannot be written or read: {error.strerror or error}"
        ) from error
    except ValueError as error:  # a text with a character that no file may have
        raise UsageError(f"{folder} cannot be written: {error}") from error


def write_job_folder(
    folder: Path, head: str, values: Mapping[str, Any], files: Mapping[Path, Path]
) -> None:
    """Write job.conf below its first lines, and copies of files by their path."""
    for target, path in files.items():
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / target)
    (folder / JOB_FILE).write_text(f"{head}\n{render_values(values)}", encoding="utf-8")


def python_files(origin: Path, target: Path) -> Iterator[Path]:
    """Yield the Python files below a folder, without other jobs' and environments'."""
    for where, folders, names in os.walk(origin):
        own = [name for name in folders if name[0] != "." and name != "__pycache__"]
        inner = [Path(where, name) for name in own]
        apart = [p for p in inner if p == target or any((p / name).exists() for name in _APART)]
        folders[:] = [path.name for path in inner if path not in apart]
        yield from (Path(where, name) for name in sorted(names) if name.endswith(".py"))


def portable(value: Any, origin: Path, copies: dict[Path, Path]) -> Any:
    """Return values with relative paths, and enter the files to copy."""
    if isinstance(value, dict):
        return {key: portable(inner, origin, copies) for key, inner in value.items()}
    if isinstance(value, list):
        return [portable(inner, origin, copies) for inner in value]
    before, _, name = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    where, suffix = (before, f":{name}") if before.endswith(".py") else (value, "")
    path = Path(os.path.abspath(origin / where)) if isinstance(where, str) else origin
    if not os.path.isfile(path):
        return value
    if not path.is_relative_to(origin):
        return f"{path}{suffix}"
    copies[path.relative_to(origin)] = path
    return f"{path.relative_to(origin)}{suffix}"
