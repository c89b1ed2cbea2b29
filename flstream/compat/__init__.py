"""Names of other frameworks for what flstream has, so that their code runs unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flstream.job import Job, load_job


class LoadedPath(NamedTuple):
    """Job of a path, and what the path is.

    Attributes:
        job: The job.
        kind: A sentence on what it is; empty for a job file.
    """

    job: Job
    kind: str


def load_path(
    path: Path, overrides: Sequence[str] = (), settings: Mapping[str, Any] | None = None
) -> LoadedPath:
    """Return the job of a job file, or of a folder with a Flower app.

    Args:
        path: Path of the file or the folder.
        overrides: Texts such as ``clients.count=4``.
        settings: Values by dotted key, which apply last; one that is None is left out.

    Raises:
        UsageError: It is neither, or has mistakes; the message names them.
    """
    if path.is_dir() and not (path / "job.conf").exists():
        from flstream.compat.flower.app_folder import app_table, load_app_job

        folder = path.absolute()
        if app_table(folder) is not None:
            job = load_app_job(folder, overrides, settings or {})
            return LoadedPath(job, f"{path} is a Flower app, run unchanged")
    return LoadedPath(load_job(path, overrides, settings), "")
