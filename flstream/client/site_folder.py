"""The folder that a site's training code works in."""

from __future__ import annotations

import os
from pathlib import Path

WORK_FOLDER = "work"
SPLIT = "split.json"
"""Name of the file in a site's folder with its number of examples by label."""


def enter_work_folder(sites_folder: str, site: str) -> None:
    """Make a site's own folder the working directory of this process.

    What code leaves there under relative names is not another site's, and is neither kept for a
    training nor taken back on resume: what decides bits belongs into the site's state.

    Args:
        sites_folder: Path of the folder that holds each site's folder.
        site: Name of the site.

    Raises:
        OSError: The folder cannot be made.
    """
    path = f"{sites_folder}/{site}/{WORK_FOLDER}"
    try:
        os.chdir(path)
    except FileNotFoundError:
        os.makedirs(path, exist_ok=True)
        os.chdir(path)


def explain_missing_file(error: BaseException, job_folder: str) -> str:
    """Where a relative path leads that was not found; empty for all other errors.

    Args:
        error: What training code has raised.
        job_folder: Path of the job file's folder.
    """
    if not isinstance(error, FileNotFoundError):
        return ""
    name = error.filename
    if name is None:
        # NumPy's error has the name in its text alone: "data/a.csv not found."
        name = next((word for word in str(error).split() if "/" in word or "." in word[:-1]), None)
    if not isinstance(name, str) or os.path.isabs(name):
        return ""
    found = (Path(job_folder) / name).exists()
    where = f"it is in the job's folder, {job_folder}" if found else f"the job's is {job_folder}"
    return (
        f" (a site works in a folder of its own, and {where}: "
        "Path(flare.system_info()['job_dir'], ...))"
    )
