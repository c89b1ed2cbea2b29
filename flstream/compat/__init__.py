"""Other frameworks' names over this package's own, for their code as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flstream.job import Job, load_job


def load_path(path: Path, overrides: Sequence[str], settings: Mapping[str, Any]) -> Job:
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
            return load_app_job(folder, overrides, settings)
    return load_job(path, overrides, settings)
