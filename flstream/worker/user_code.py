"""Running of training code: what it may import, where it works, and how it failed."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from flstream.client.base import enter_base
from flstream.client.learner import WORK_FOLDER
from flstream.debugging import code_failed, sentence
from flstream.job import Job
from flstream.job.code import make_importable
from flstream.text import printable_path
from flstream.worker.alias import REFUSED, client_names, install
from flstream.worker.worker_info import WorkerInfo


class CodeFailure(NamedTuple):
    """Failure of training code.

    Attributes:
        reason: Clause that says why it failed.
        exit_code: Status with which it ended itself; None if it did not.
    """

    reason: str
    exit_code: int | None = None


def prepare_imports(job: Job) -> None:
    """Make a job's folder and base available, and install names for other packages."""
    enter_base(job.base)
    install_alias(job)
    make_importable(job.folder)


def install_alias(job: Job) -> None:
    """Install another framework's names for the code of a job that asks for them."""
    if job.train.alias is not None:
        install(job.train.alias, client_names(), REFUSED)


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


def run_code(
    run: Callable[[], CodeFailure | None], source: Path, info: WorkerInfo, site: str
) -> CodeFailure | None:
    """Run training code for a site, and return why it failed.

    The function returns its failure if it does not raise it. A child that the code forked ends
    here.
    """
    pid = os.getpid()
    try:
        failure = run()
    except BaseException as error:
        log_traceback(error)
        folder = f"{info.sites_folder}/{site}"
        reason = sentence(error, source) + _explained_path(error, str(info.job.folder), folder)
        failure = CodeFailure(reason)
    if os.getpid() != pid:
        os._exit(0 if failure is None else 1)
    return failure


def log_traceback(error: BaseException) -> None:
    """Print the traceback of an error in training code.

    Where the log is on a full disk it is left out: the exception itself must not be lost with it.
    """
    with suppress(OSError):
        code_failed(error)


def _explained_path(error: BaseException, job_folder: str, site_folder: str) -> str:
    """Explain a path in an exception of training code, to follow its sentence.

    That is where a relative path leads that was not found, and which disk is full where something
    could not be written; empty for all other errors.
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
