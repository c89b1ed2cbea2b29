"""Comparison of a job's needs with this machine, and the one change that would make it fit."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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


class Lack(NamedTuple):
    """A sentence on memory or disk that does not suffice, and the change that would make it do."""

    sentence: str
    change: str


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


def lacks(job: Job, layout: Layout, need: Forecast, available: Available) -> Iterator[Lack]:
    """Yield what a machine lacks for a job; nothing if the job fits.

    Args:
        job: The job.
        layout: Layout of the job's model.
        need: Forecast of the job.
        available: Available memory and disk.
    """
    memory, disk, folder = available.memory, available.disk, available.folder
    if need.bytes_here(job) > memory:
        workers = max(memory - need.server_side_bytes, 0) // need.worker_bytes
        change = "make the model smaller, or free memory"
        if need.mode == "native":
            change = "set streaming.mode = pull and leave the chunk sizes at their default"
        elif workers and job.engine.is_local:
            change = f"set clients.parallel = {workers}"
        need_text = f"{need.mode} mode needs about {format_bytes(need.bytes_here(job))} of memory"
        yield Lack(f"{need_text}, {format_bytes(memory)} are available", change)
    if available.flaw is not None:
        yield Lack(f"{folder} cannot be written: {available.flaw}", "name another --run-dir")
    elif disk is not None and need.disk_bytes > disk:
        plan = plan_disk(job, layout, job.clients.cohort_size)
        # The initial model, the best one, and the next one are there beside those that are kept.
        keep = min(plan.lasts(disk - plan.model) - 1, job.planned_rounds)
        change = "make room, or name another --run-dir"
        need_text = f"the run takes about {format_bytes(need.disk_bytes)} of disk"
        yield Lack(
            f"{need_text}, {format_bytes(disk)} are free in {folder}",
            f"set checkpoints.keep = {keep}" if keep > 0 else change,
        )
