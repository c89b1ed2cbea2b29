"""Comparison of a job's needs with this machine, and advice where they exceed it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from flstream.job import Job
from flstream.model.layout import Layout
from flstream.server.disk import free_bytes
from flstream.server.task_plan import plan_disk
from flstream.simulation.forecasting.forecast import Forecast, forecast
from flstream.units import format_bytes


@dataclass(frozen=True)
class Available:
    """Available memory and disk of a machine.

    Attributes:
        memory: available memory in bytes.
        disk: free disk space for the run directory in bytes; None if unknown.
        folder: folder whose disk was looked at.
        flaw: why the folder cannot be made or written; None if it can.
    """

    memory: int
    disk: int | None
    folder: Path
    flaw: str | None = None


@dataclass(frozen=True)
class Fit:
    """Result of comparing a job's needs with a machine.

    Attributes:
        lacking: sentences about memory and disk that do not suffice; empty if the job fits.
        advice: changes that would make the job fit, each with the resulting need.
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
        folder: folder for the run directory; it need not exist yet.
    """
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    flaw = _flaw(there)
    while not there.is_dir():
        there = there.parent
    return Available(psutil.virtual_memory().available, free_bytes(there), folder, flaw)


def _flaw(there: Path) -> str | None:
    """Return why nothing can be made in a path, or None: only trying it tells for sure."""
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".flstream-", dir=there))
    except OSError as error:
        return error.strerror
    return None


def fit(job: Job, layout: Layout, need: Forecast, available: Available) -> Fit:
    """Compare a job's needs with the available memory and disk.

    Args:
        job: the job.
        layout: layout of the job's model.
        need: forecast of the job.
        available: available memory and disk.
    """
    lacking, advice = [], []
    memory, disk = available.memory, available.disk
    if not job.engine.is_local:
        if need.bytes_here > memory:
            lacking.append(
                f"the server needs about {format_bytes(need.bytes_here)} of memory, "
                f"{format_bytes(memory)} are available"
            )
            advice.append("begin the run on another machine, or free memory")
    elif need.total_bytes > memory:
        lacking.append(
            f"{need.mode} mode with {need.workers} "
            f"{'process' if need.workers == 1 else 'processes'} for the sites needs about "
            f"{format_bytes(need.total_bytes)} of memory, {format_bytes(memory)} are available"
        )
        advice += _smaller(job, layout, memory) or ["make the model smaller, or free memory"]
    if available.flaw is not None:
        lacking.append(f"{available.folder} cannot be written: {available.flaw}")
        advice.append("name another --run-dir")
    elif disk is not None and need.disk_bytes > disk:
        lacking.append(
            f"the run takes up to {format_bytes(need.disk_bytes)} of disk, "
            f"{format_bytes(disk)} are free in {available.folder}"
        )
        keep = _fitting_keep(job, layout, disk)
        advice.append(
            f"set checkpoints.keep = {keep}" if keep else "make room, or name another --run-dir"
        )
    return Fit(tuple(lacking), tuple(advice))


def _smaller(job: Job, layout: Layout, available: int) -> list[str]:
    """Return the smallest changes of a job that fit it into the available memory, in bytes."""

    def need_if_it_fits(changed: Job) -> int | None:
        need = forecast(changed, layout).total_bytes
        return need if need <= available else None

    advice, streamed = [], job
    if forecast(job, layout).mode == "native":
        streamed = _streamed(job)
        need = need_if_it_fits(streamed)
        if need is not None:
            changes = "set streaming.mode = pull"
            if job.streaming.mode != "native":
                changes = "leave the download chunk sizes at their default"
            advice.append(f"{changes}, which needs about {format_bytes(need)}")
    if not advice:
        also = " and streaming.mode = pull" if streamed is not job else ""
        for workers, changed in _with_fewer_workers(streamed):
            need = need_if_it_fits(changed)
            if need is not None:
                change = f"set clients.parallel = {workers}{also}"
                advice.append(f"{change}, which needs about {format_bytes(need)}")
                break
    return advice


def _streamed(job: Job) -> Job:
    default = type(job.streaming)()
    sizes = {
        name: getattr(job.streaming, name) or getattr(default, name)
        for name in ("tensor_download_chunk_size", "np_download_chunk_size")
    }
    mode = "pull" if job.streaming.mode == "native" else job.streaming.mode
    return _changed(job, "streaming", mode=mode, **sizes)


def _with_fewer_workers(job: Job) -> Iterator[tuple[int, Job]]:
    for workers in range(job.clients.workers - 1, 0, -1):
        yield workers, _changed(job, "clients", parallel=workers)


def _fitting_keep(job: Job, layout: Layout, free: int) -> int | None:
    """Return the most checkpoints that fit into the free bytes; None if not even one does."""
    plan = plan_disk(job, layout, job.clients.cohort_size)
    # The initial model, the best one, and the one that is being written are needed beside them.
    most = plan.lasts(free - plan.model) - 1
    keep = min(most, job.planned_rounds)
    while keep > 0 and forecast(_changed(job, "checkpoints", keep=keep), layout).disk_bytes > free:
        keep -= 1
    return keep if keep > 0 else None


def _changed(job: Job, section: str, **values: Any) -> Job:
    inner = getattr(job, section).model_copy(update=values)
    return job.model_copy(update={section: inner})
