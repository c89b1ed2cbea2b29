"""The folder that a site's training code works in."""

from __future__ import annotations

import os
from pathlib import Path

from flstream.text import printable_path

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


def explain_path(error: BaseException, job_folder: str, site_folder: str) -> str:
    """Explain a path in an exception of training code, to follow its sentence.

    That is where a relative path leads that was not found, and which disk is full where something
    could not be written; empty for all other errors.

    Args:
        error: Exception that training code raised.
        job_folder: Path of the job file's folder.
        site_folder: Path of the site's folder in the run directory.
    """
    if isinstance(error, FileNotFoundError):
        return _missing_file(error, job_folder)
    if isinstance(error, Exception) and getattr(error, "filename", None) is None:
        # The system names no path where a write fails, and torch and safetensors have errors of
        # their own, which need not say that it was for want of space.
        folders = (site_folder, os.curdir, os.environ.get("TMPDIR") or "/tmp")
        full = [os.path.realpath(folder) for folder in folders if _is_full(folder)]
        if full:
            return f" (no space is left on the disk of {printable_path(full[0])})"
    return ""


def _missing_file(error: FileNotFoundError, job_folder: str) -> str:
    name = error.filename
    if name is None:
        # NumPy's error has the name in its text alone: "data/a.csv not found."
        name = next((word for word in str(error).split() if "/" in word or "." in word[:-1]), None)
    if not isinstance(name, str) or os.path.isabs(name):
        return ""
    in_job = (Path(job_folder) / name).exists()
    where = f"it is in the job's folder, {job_folder}" if in_job else f"the job's is {job_folder}"
    return (
        f" (a site works in a folder of its own, and {where}: "
        "Path(flare.system_info()['job_dir'], ...))"
    )


def _is_full(folder: str) -> bool:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    # Some file systems do not count files.
    return disk.f_blocks > 0 and (disk.f_bavail == 0 or (disk.f_files > 0 and disk.f_favail == 0))
