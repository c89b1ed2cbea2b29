"""Comparison of a job's needs with this machine, and the one change that would make it fit."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from flstream.job import Job
from flstream.model.layout import Layout
from flstream.server.disk import free_bytes
from flstream.server.task_plan import plan_disk
from flstream.simulation.forecasting.forecast import Forecast
from flstream.units import format_bytes


@dataclass(frozen=True)
class Available:
    """Available memory and disk of a machine.

    Attributes:
        memory: Available memory in bytes.
        disk: Free disk space for the run directory in bytes; None if unknown.
        folder: Folder of the run directory.
        flaw: Reason why nothing can be written there; None if it can.
    """

    memory: int
    disk: int | None
    folder: Path
    flaw: str | None = None


@dataclass(frozen=True)
class Fit:
    """Result of comparing a job's needs with a machine.

    Attributes:
        lacking: Sentences about memory and disk that do not suffice; empty if the job fits.
        advice: A change for each that would make the job fit.
    """

    lacking: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether memory and disk suffice."""
        return not self.lacking


def available_in(folder: Path) -> Available:
    """Return the memory and disk that this machine has available now.

    Args:
        folder: Folder for the run directory; it need not exist yet.
    """
    parent, flaw = folder.absolute(), None
    while not parent.exists():
        parent = parent.parent
    try:  # only this tells for sure
        os.rmdir(tempfile.mkdtemp(prefix=".flstream-", dir=parent))
    except OSError as error:
        flaw = error.strerror
    disk = free_bytes(parent if parent.is_dir() else parent.parent)
    return Available(psutil.virtual_memory().available, disk, folder, flaw)


def fit(job: Job, layout: Layout, need: Forecast, available: Available) -> Fit:
    """Compare a job's needs with the available memory and disk.

    Args:
        job: The job.
        layout: Layout of the job's model.
        need: Forecast of the job.
        available: Available memory and disk.
    """
    lacking, advice = [], []
    memory, disk = available.memory, available.disk
    bytes_here = need.total_bytes if job.engine.is_local else need.here_bytes
    if bytes_here > memory:
        lacking.append(
            f"{need.mode} mode needs about {format_bytes(bytes_here)} of memory, "
            f"{format_bytes(memory)} are available"
        )
        workers = max(memory - need.here_bytes, 0) // need.worker_bytes
        if need.mode == "native":
            advice.append("set streaming.mode = pull and leave the chunk sizes at their default")
        elif workers and job.engine.is_local:
            advice.append(f"set clients.parallel = {workers}")
        else:
            advice.append("make the model smaller, or free memory")
    if available.flaw is not None:
        lacking.append(f"{available.folder} cannot be written: {available.flaw}")
        advice.append("name another --run-dir")
    elif disk is not None and need.disk_bytes > disk:
        lacking.append(
            f"the run takes about {format_bytes(need.disk_bytes)} of disk, "
            f"{format_bytes(disk)} are free in {available.folder}"
        )
        plan = plan_disk(job, layout, job.clients.cohort_size)
        # The initial model, the best one, and the next one are there beside those that are kept.
        keep = min(plan.lasts(disk - plan.model) - 1, job.planned_rounds)
        set_keep = f"set checkpoints.keep = {keep}"
        advice.append(set_keep if keep > 0 else "make room, or name another --run-dir")
    return Fit(tuple(lacking), tuple(advice))
