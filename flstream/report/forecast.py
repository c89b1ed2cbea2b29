"""Text and JSON of ``flstream validate``: a job's forecast, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from flstream.job import Job
from flstream.report.console import print_facts
from flstream.report.text import counted, pieces
from flstream.simulation.forecast import Available, FleetFacts, Forecast, Lack
from flstream.text import printable
from flstream.units import format_bytes, format_seconds

# Kinds of devices that have a number of sites of their own.
_MOST_DEVICES = 6


def print_forecast(
    console: Console, job: Job, need: Forecast, room: Available, lacks: Sequence[Lack]
) -> None:
    """Print a forecast: traffic, memory, disk, and whether they fit this machine.

    Args:
        console: Console to print to.
        job: The job.
        need: Forecast of the job.
        room: Available memory and disk.
        lacks: Memory and disk that do not suffice.
    """
    width = console.width if console.is_terminal else None
    facts = [(name, Text(printable(value))) for name, value in _facts(job, need, room)]
    print_facts(console, facts, width)
    verdict = "does not fit" if lacks else "fits, training not counted"
    console.print(Text(f"\n{verdict}", style="bold red" if lacks else "bold green"))
    for lack in lacks:
        for line in (lack.sentence, f"to make it fit: {lack.change}"):
            console.print(Text(printable(line)), soft_wrap=True)


def forecast_json(
    job: Job, need: Forecast, room: Available, lacks: Sequence[Lack]
) -> dict[str, Any]:
    """Convert a forecast to JSON, with sizes in bytes; see :func:`print_forecast`."""
    facts, measured = asdict(need), need.measured
    del facts["measured"]
    building = {"way": measured.way, "memory": measured.memory, "frozen": measured.frozen}
    return {
        "job": job.name,
        "rounds": job.planned_rounds,
        "sites": job.clients.count,
        "sites_per_round": job.sample_size,
        "workers": job.clients.workers,
        **facts,
        "imports": {"shared": measured.shared, "own": measured.own},
        "building": building if measured.way else None,
        "base_bytes": measured.base_bytes,
        "programs": [msgspec.to_builtins(program) for program in need.programs],
        "memory_limit": job.memory_limit,
        "available": {"memory": room.memory, "disk": room.disk, "folder": str(room.folder)},
        "fits": not lacks,
        "lacking": [lack.sentence for lack in lacks],
        "advice": [lack.change for lack in lacks],
    }


def _facts(job: Job, need: Forecast, room: Available) -> Iterator[tuple[str, str]]:
    size, clients, measured = format_bytes, job.clients, need.measured
    rounds = counted(job.planned_rounds, "round")
    code = str(job.train.learner or job.train.script).removeprefix(f"{job.folder}/")
    origin = str(job.model.initial or job.model.factory).removeprefix(f"{job.folder}/")
    yield "job", f"{job.name}, {rounds} of {code}"
    at_once = counted(clients.workers, "worker")
    yield "sites", f"{clients.count:,}, of which {job.sample_size:,} a round, in {at_once}"
    shares = clients.share_workers and not job.engine.is_inline
    if shares and job.train.learner is None:
        most = clients.count
        yield "", f"each task runs the script anew; clients.parallel = {most} or a learner does not"
    if need.fleet is not None:
        for place, line in enumerate(_fleet(need.fleet)):
            yield "" if place else "devices", line
    for place, program in enumerate(need.programs):
        yield "" if place else "workflow", f"{'then ' if place else ''}{program}"
    if job.aggregation.type != "mean":
        yield "aggregation", str(job.aggregation.type)
    yield "model", f"{size(need.model_bytes)} in {counted(need.tensors, 'tensor')}, from {origin}"
    if measured.base_bytes:
        yield "base", f"{size(measured.base_bytes)}, mapped once by all workers of a machine"
    if measured.way:
        taken = f", about {size(measured.memory)} at a time" if measured.memory else ""
        yield "built", f"{measured.way}{taken}"
    if measured.frozen > need.model_bytes:
        yield "frozen", f"{size(measured.frozen)} a worker, which model.base would share"
    moved = f"{size(need.down_bytes)} down and {size(need.up_bytes)} up"
    yield "a round", f"about {moved}, {need.mode} mode, {pieces(need.chunk_size)}"
    if need.epsilon is not None:
        yield "privacy", f"epsilon {need.epsilon:.4g} at delta {job.privacy.delta:g} after {rounds}"
    yield "imports", f"{size(measured.shared)} shared, {size(measured.own)} a worker (measured)"
    yield "server", f"about {size(need.server_bytes)} over its idle"
    yield "a worker", f"about {size(need.worker_bytes)} for the exchange, with its imports"
    yield "not counted", f"{size(3 * need.model_bytes)} a worker for gradients and Adam's state;"
    yield "", "activations, data, and libraries that load at their first use"
    all_memory = size(need.total_bytes)
    has = f"{size(room.memory)} available"
    if job.memory_limit is not None:
        has += f", {size(job.memory_limit)} allowed (memory_limit)"
    yield "all memory", f"about {all_memory} without these, {has}"
    free = "" if room.disk is None else f", {size(room.disk)} free"
    yield "disk", f"about {size(need.disk_bytes)} (keep = {job.checkpoints.keep}){free}"


def _fleet(fleet: FleetFacts) -> Iterator[str]:
    """Yield the lines about the devices of the sites."""
    names = [f"{count:,} {name}" for name, count in fleet.sites.items()]
    others = len(names) - _MOST_DEVICES
    yield ", ".join([*names[:_MOST_DEVICES], *([f"{others} other kinds"] if others > 0 else [])])
    down, up = (
        f"{rate / 1e6:.3g} Mbit/s {way}" if rate is not None else f"no limit {way}"
        for rate, way in ((fleet.down, "down"), (fleet.up, "up"))
    )
    yield f"medians: speed {fleet.speed:.3g}, {down}, {up}, latency {format_seconds(fleet.latency)}"
    if fleet.without_memory:
        count = counted(fleet.without_memory, "site")
        yield f"{count} without the memory for the model, never asked"
