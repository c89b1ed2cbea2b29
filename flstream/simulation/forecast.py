"""Forecast of a job's traffic, memory and disk, and whether they fit this machine.

It is an estimate. Counted are models and updates as they travel and wait, and what the fork server
and a site's training code import. Not counted are gradients, the optimizer's state, activations and
data.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil

from flstream.aggregation.accountant import Accounting, epsilon
from flstream.aggregation.rules import rule_for
from flstream.errors import FlstreamError, UsageError
from flstream.filters.chain import remaining
from flstream.job import Job
from flstream.job.bodies import MAIN
from flstream.model.joined import ZeroSource, joint_layout, zeros_beside
from flstream.model.layout import Layout
from flstream.model.selection import Selection, selected_names
from flstream.server.disk import free_bytes
from flstream.server.program_view import ProgramOutline
from flstream.server.stored_model import ShapesOf, own_body
from flstream.server.task_plan import plan_disk, plan_task
from flstream.units import format_bytes

# Private memory, as measured with jobs/: of the launcher (52 MiB) and two other processes than
# workers (9 to 13 MiB each), of a worker, of streaming (10 to 15 MiB), and of dp-accounting.
_OTHERS_BYTES = 96 << 20
_WORKER_BYTES = 16 << 20
_STREAMING_BYTES = 24 << 20
_ACCOUNTANT_BYTES = 72 << 20


@dataclass(frozen=True)
class Measured:
    """Facts about a job that only its code knows; sizes are in bytes.

    Attributes:
        shared: RSS of the fork server, whose imports all processes share.
        own: Memory of each worker's further imports.
        way: How the initial model is built, such as ``in files``; empty if that is not known.
        memory: Most bytes of the model in memory at a time while it is built.
        frozen: Bytes of the factory's module that are neither exchanged nor of a shared base, such
            as what lies below an adapter; each worker holds them, too.
        base_bytes: Size of the base that the sites share; 0 without one.
    """

    # Where only torch is imported.
    shared: int = 240 << 20
    own: int = 0
    way: str = ""
    memory: int = 0
    frozen: int = 0
    base_bytes: int = 0


@dataclass(frozen=True)
class FleetFacts:
    """Facts about the devices of all sites.

    Attributes:
        sites: Number of sites by the name of their device, the most frequent first.
        speed: Median speed, in units of a device of speed 1.
        down: Median of the bits a second that they can receive; None for no limit.
        up: Median of the bits a second that they can send; None for no limit.
        latency: Median latency in seconds.
        without_memory: Number of sites that have not the memory for the model.
    """

    sites: Mapping[str, int]
    speed: float
    down: float | None
    up: float | None
    latency: float
    without_memory: int


@dataclass(frozen=True)
class Forecast:
    """Estimated needs of a job; sizes are in bytes.

    Attributes:
        measured: Facts about the job's code.
        model_bytes: Size of the model.
        tensors: Number of tensors of the model.
        mode: Transfer mode; native also where a chunk size of 0 turns streaming off.
        chunk_size: Largest chunk; 0 in native mode.
        down_bytes: Models sent to the sites that train in a round, or score where none trains.
        up_bytes: Updates sent to the server in a round, and models that it collects.
        server_bytes: Peak memory of the server over its idle.
        worker_bytes: Peak memory of a worker that it shares with no other process.
        total_bytes: Peak memory on this machine: of all processes, or of all but the workers
            where these are elsewhere.
        disk_bytes: Peak size of all files together.
        kept_bytes: Size of those with updates that workflows keep until the run ends.
        epsilon: Privacy spent by rounds that each fold one draw; None for a job without privacy.
        programs: Outlines of the workflows' first rounds.
        fleet: Facts about the sites' devices; None without devices.
    """

    measured: Measured
    model_bytes: int
    tensors: int
    mode: str
    chunk_size: int
    down_bytes: int
    up_bytes: int
    server_bytes: int
    worker_bytes: int
    total_bytes: int
    disk_bytes: int
    kept_bytes: int
    epsilon: float | None
    programs: list[ProgramOutline] = field(default_factory=list)
    fleet: FleetFacts | None = None

    @property
    def building_bytes(self) -> int:
        """Peak memory of all processes while the initial model is built."""
        measured = self.measured
        return measured.shared + _OTHERS_BYTES + measured.base_bytes + measured.memory


class Available(NamedTuple):
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
    """Sentence on lacking memory or disk, and a change that would make the job fit."""

    sentence: str
    change: str


def plain_layout(model_bytes: int, tensors: int = 1) -> Layout:
    """Return the layout of a float32 model with tensors of equal size.

    Args:
        model_bytes: Size of the model in bytes, rounded down to a multiple of 4.
        tensors: Number of tensors, 1 or more.
    """
    least, more = divmod(model_bytes // 4, tensors)
    return Layout.of((f"tensor.{i}", "F32", (least + (i < more),)) for i in range(tensors))


def forecast(
    job: Job,
    layout: Layout,
    programs: Sequence[ProgramOutline] = (),
    measured: Measured = Measured(),
) -> Forecast:
    """Forecast a job's traffic, memory and disk.

    Args:
        job: The job.
        layout: Layout of the job's model.
        programs: What the job's workflows do in their first rounds; without them, or where the
            first could not be run dry, a round is a training of ``clients.per_round`` sites.
        measured: Facts about the job's code; by default, of one that imports torch alone.

    Raises:
        UsageError: A pattern of ``aggregation`` or of a filter matches no tensor's name.
    """
    workers, cohort = job.clients.workers, job.sample_size
    sent = {name: zeros_beside(layout) for program in programs[:1] for name in program.bodies}
    own = {
        name: _own_body(name, shapes_of, layout)
        for program in programs[:1]
        for name, shapes_of in program.own.items()
    }
    beside = {name: body.layout for name, body in {**sent, **own}.items()}
    whole = joint_layout({MAIN: layout, **beside}) if beside else layout
    update_bytes = _update_bytes(job, layout) + sum(body.layout.nbytes for body in sent.values())
    chunk_size = job.streaming.chunk_size(job.train.exchange_format)
    server = _STREAMING_BYTES + min(job.aggregation.memory_budget, cohort * update_bytes)
    base, own_bytes = measured.base_bytes, measured.own + measured.frozen
    worker = own_bytes + _WORKER_BYTES + _STREAMING_BYTES + whole.nbytes
    if not chunk_size:  # the server serialises a model for each worker, and for a file
        server, worker = server + (workers + 1) * whole.nbytes, worker + whole.nbytes
    local_processes = (workers if job.engine.is_local else 0) + job.is_scored_centrally
    spent = None
    if job.privacy.is_on:
        server += _ACCOUNTANT_BYTES
        accounting = Accounting.of(job)
        spent = epsilon(accounting, {accounting.population: job.planned_rounds})
    trained, scored, collected = cohort, 0, 0
    if programs and not programs[0].flaw:
        first = programs[0]
        trained, scored, collected = first.trained, first.scored, first.collected
    down, up = (trained or scored) * whole.nbytes, (trained + collected) * update_bytes
    for count, parts in programs[0].parts if programs else ():
        down += count * _saved(layout, parts, "receive", late="late")
        up += count * _saved(layout, parts, "send")
    task = None
    if programs and programs[0].reads:
        task = plan_task(job, whole, trained, is_read=True)
    plan = plan_disk(job, whole, trained or cohort, programs, task, base)
    kept_updates = sum(stage.args.kept_updates(job.planned_rounds, cohort) for stage in job.stages)
    need = Forecast(
        measured=measured,
        model_bytes=layout.nbytes,
        tensors=len(layout.tensors),
        mode=job.streaming.mode if chunk_size else "native",
        chunk_size=chunk_size,
        down_bytes=down,
        up_bytes=up,
        server_bytes=server,
        worker_bytes=worker,
        total_bytes=measured.shared + _OTHERS_BYTES + server + local_processes * worker + base,
        disk_bytes=plan.model
        + plan.more_checkpoints(0, 1) * plan.checkpoint
        + plan.passing_bytes
        + kept_updates * layout.nbytes,
        kept_bytes=kept_updates * layout.nbytes,
        epsilon=spent,
        programs=list(programs),
        fleet=_fleet(job, layout.nbytes) if job.devices.is_on else None,
    )
    # Base and initial model are built before a site has one.
    return replace(need, total_bytes=max(need.total_bytes, need.building_bytes))


def available_in(folder: Path) -> Available:
    """Return the present free memory and disk of this machine.

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
    """Yield a machine's lacks for a job; nothing if the job fits.

    Args:
        job: The job.
        layout: Layout of the job's model.
        need: Forecast of the job.
        available: Available memory and disk.
    """
    memory, disk, folder, flaw = available
    limit = job.memory_limit
    is_limited = limit is not None and limit < memory
    memory = limit if limit is not None and is_limited else memory
    if need.total_bytes > memory:
        fewer = job.clients.workers - -(-(need.total_bytes - memory) // need.worker_bytes)
        if need.building_bytes > memory:  # before there are workers
            fewer = 0
        change = "make the model smaller, or free memory"
        if need.mode == "native":
            change = "set streaming.mode = pull and leave the chunk sizes at their default"
        elif fewer > 0 and job.engine.is_local:
            change = f"set clients.parallel = {fewer}"
        if is_limited and need.total_bytes <= available.memory:
            change += f", or memory_limit = {-(-need.total_bytes >> 20)} MiB"
        need_text = f"{need.mode} mode needs about {format_bytes(need.total_bytes)} of memory"
        has = "allowed (memory_limit)" if is_limited else "available"
        yield Lack(f"{need_text}, {format_bytes(memory)} are {has}", change)
    if flaw is not None:
        yield Lack(f"{folder} cannot be written: {flaw}", "name another --run-dir")
    elif disk is not None and need.disk_bytes > disk:
        plan = plan_disk(
            job, layout, job.sample_size, need.programs, base_bytes=need.measured.base_bytes
        )
        # The initial model, the best one, and the next one are there beside those that are kept.
        keep = min(plan.lasts(disk - plan.model - need.kept_bytes) - 1, job.planned_rounds)
        change = "make room, or name another --run-dir"
        settings = [stage.args.keeps_none_with for stage in job.stages]
        if need.kept_bytes and (setting := next(filter(None, settings), "")):
            updates = f"{format_bytes(need.kept_bytes)} of them for updates that are kept"
            change = f"set {setting} ({updates}), or {change}"
        need_text = f"the run takes about {format_bytes(need.disk_bytes)} of disk"
        yield Lack(
            f"{need_text}, {format_bytes(disk)} are free in {folder}",
            f"set checkpoints.keep = {keep}" if keep > 0 else change,
        )


def _saved(layout: Layout, parts: Mapping[str, Selection], what: str, late: str = "") -> int:
    """Return by how many bytes a part of a model is more than the whole one; below 0 for fewer."""

    def size(selection: Selection) -> int:
        names = selected_names(what, selection, layout, tuple(layout.names))
        return sum(layout.by_name[name].nbytes for name in names)

    more = size(parts[what]) - layout.nbytes if what in parts else 0
    return more + (size(parts[late]) if late in parts else 0)


def _own_body(name: str, shapes_of: ShapesOf, layout: Layout) -> ZeroSource:
    """Return a body of the server's own; a UsageError says why the model has none."""
    try:
        return own_body(name, shapes_of, layout)
    except FlstreamError as error:
        raise UsageError(f"workflow.type: {error}") from error


def _update_bytes(job: Job, layout: Layout) -> int:
    """Return the size of the tensors that are aggregated and pass the filters."""
    sent = rule_for(job.aggregation).selected(layout)
    remaining(layout, job.filters.down, "down")
    unfiltered = remaining(layout, job.filters.up, "up")
    return sum(spec.nbytes for spec in unfiltered.tensors if spec.name in sent)


def _fleet(job: Job, model_bytes: int) -> FleetFacts:
    """Return the facts about the devices of a job's sites."""
    devices = [job.device(site) for site in job.clients.site_names]
    return FleetFacts(
        sites=dict(Counter(device.name for device in devices).most_common()),
        speed=median(device.speed for device in devices),
        down=_median_rate(device.down for device in devices),
        up=_median_rate(device.up for device in devices),
        latency=median(device.latency for device in devices),
        without_memory=sum((device.memory or model_bytes) < model_bytes for device in devices),
    )


def _median_rate(rates: Iterable[float | None]) -> float | None:
    middle = median(inf if rate is None else rate for rate in rates)
    return None if middle == inf else middle
