"""Figures of a run, from its summary and its memory samples, and their ratios to the limits."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from flstream.bench.exchange import ROUNDS, link_seconds
from flstream.bench.limits import MachineLimits
from flstream.bench.plan import Case, Plan
from flstream.runs.summary import Summary
from flstream.telemetry.events import SERVER
from flstream.telemetry.memory import ProcessMemory, Sample

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FiguresT = TypeVar("FiguresT", bound="DataclassInstance")

# Points of a trace, about as many as a chart can show.
_MOST_POINTS = 2000


@dataclass(frozen=True)
class Measurement:
    """Figures of one run. Idle means after a process's imports.

    Attributes:
        download: seconds until every client had the model, in the measured round.
        upload_and_fold: seconds until every update was folded, in the measured round.
        checkpoint: seconds until the next model was durable, in the measured round.
        train: seconds that the clients took to change the model, in the measured round.
        requests: requests a round of all clients, in both directions.
        server_idle_rss: RSS of the server at idle, in bytes.
        server_idle_uss: USS of the server at idle, in bytes.
        server_peak_rss: peak RSS of the server over its idle, in bytes.
        server_peak_uss: peak USS of the server over its idle, in bytes.
        client_idle_rss: RSS at idle of the client with the highest peak, in bytes.
        client_idle_uss: USS at idle of the client with the highest peak, in bytes.
        client_peak_rss: highest peak RSS of a client over its idle, in bytes.
        client_peak_uss: peak USS over idle of the client with the highest peak RSS, in bytes.
        total_peak_pss: highest sum of PSS over all processes at one time, idle included, in
            bytes. Where PSS was not read, it is extrapolated with RSS as described in
            :mod:`flstream.telemetry.memory`.
        wall_seconds: seconds of the whole run, from its first process to its last.
    """

    download: float
    upload_and_fold: float
    checkpoint: float
    train: float
    requests: float
    server_idle_rss: float
    server_idle_uss: float
    server_peak_rss: float
    server_peak_uss: float
    client_idle_rss: float
    client_idle_uss: float
    client_peak_rss: float
    client_peak_uss: float
    total_peak_pss: float
    wall_seconds: float


class Trace(NamedTuple):
    """Memory over time in one run.

    Attributes:
        server: points of the server: seconds since the first round began, RSS over idle in bytes.
        client: points of the client with the highest peak, in the same units.
    """

    server: list[tuple[float, int]]
    client: list[tuple[float, int]]


def median(runs: Sequence[FiguresT]) -> FiguresT:
    """Return the median of each figure of a record over one or more runs."""
    rows = [asdict(run) for run in runs]
    return replace(
        runs[0], **{name: statistics.median(row[name] for row in rows) for name in rows[0]}
    )


def read_samples(path: Path) -> dict[str, list[Sample]]:
    """Read the samples in a run's ``memory.jsonl``.

    Returns:
        Samples in their order in time, by process name.
    """
    decoder = msgspec.json.Decoder(Sample)
    samples: dict[str, list[Sample]] = {}
    with path.open("rb") as file:
        for line in file:
            sample = decoder.decode(line)
            samples.setdefault(sample.process, []).append(sample)
    return samples


def figures(
    summary: Summary, samples: Mapping[str, Sequence[Sample]], ready: Mapping[str, float]
) -> Measurement:
    """Compute the figures of a finished run.

    Args:
        summary: summary of the run.
        samples: memory samples by process name, as from :func:`read_samples`.
        ready: times at which processes had done their imports, by name.
    """
    steady, transfer = summary.rounds[-1], summary.transfer
    largest = largest_client(summary)
    server, client = summary.memory.server, summary.memory.clients[largest]
    server_uss = _idle_uss(SERVER, samples, ready)
    client_uss = _idle_uss(largest, samples, ready)
    return Measurement(
        download=steady.download,
        upload_and_fold=steady.upload_and_fold,
        checkpoint=steady.checkpoint,
        train=steady.train,
        requests=(transfer.down.requests + transfer.up.requests) / ROUNDS,
        server_idle_rss=server.idle_rss,
        server_idle_uss=server_uss,
        server_peak_rss=server.over_idle,
        server_peak_uss=_over(server.peak_uss, server_uss),
        client_idle_rss=client.idle_rss,
        client_idle_uss=client_uss,
        client_peak_rss=client.over_idle,
        client_peak_uss=_over(client.peak_uss, client_uss),
        total_peak_pss=summary.memory.peak_total_pss,
        wall_seconds=summary.wall_seconds,
    )


def largest_client(summary: Summary) -> str:
    """Return the name of the client with the highest peak RSS over its idle."""
    clients = summary.memory.clients
    return max(clients, key=lambda name: clients[name].over_idle)


def trace(summary: Summary, samples: Mapping[str, Sequence[Sample]], began: float) -> Trace:
    """Compute the memory over time of a finished run.

    Args:
        summary: summary of the run.
        samples: memory samples by process name, as from :func:`read_samples`.
        began: time at which the first round began.
    """
    client, memory = largest_client(summary), summary.memory
    return Trace(
        _points(samples.get(SERVER, ()), memory.server, began),
        _points(samples.get(client, ()), memory.clients[client], began),
    )


@dataclass(frozen=True)
class Ratios:
    """Measured times divided by those at the machine's limits; 1 is optimal.

    Attributes:
        download_pipe: ratio of sending the model to every client to the bare pipe.
        upload_pipe: ratio of fetching and folding the updates to the bare pipe.
        exchange_pipe: ratio of download, upload and fold together to the bare pipe.
        exchange_memcpy: ratio of download, upload and fold together to copying in memory.
        checkpoint_disk: ratio of making the next model durable to writing as many bytes.
        exchange_link: ratio of download, upload and fold together to the emulated link, or to the
            bare pipe in a direction in which that is slower; None without a link.
    """

    download_pipe: float
    upload_pipe: float
    exchange_pipe: float
    exchange_memcpy: float
    checkpoint_disk: float
    exchange_link: float | None


def ratios(plan: Plan, case: Case, seconds: Measurement, limits: MachineLimits) -> Ratios:
    """Compute the ratios of a case to the machine's limits.

    Args:
        plan: plan of the bench.
        case: case that was measured. The pipe's limit is the one with reads of the case's chunk
            size, and the highest one where the case has no chunks.
        seconds: measured figures of the case.
        limits: limits of the machine, measured in the same bench.
    """
    pipe = limits.pipe.get(case.chunk_size or 0, max(limits.pipe.values()))
    one_way = plan.moved_bytes / pipe
    exchange = seconds.download + seconds.upload_and_fold
    linked = None
    if plan.network is not None:
        linked = sum(max(one_way, each) for each in link_seconds(plan.network, plan.model_bytes))
    return Ratios(
        download_pipe=seconds.download / one_way,
        upload_pipe=seconds.upload_and_fold / one_way,
        exchange_pipe=exchange / (2 * one_way),
        exchange_memcpy=exchange / (2 * plan.moved_bytes / limits.memcpy),
        checkpoint_disk=seconds.checkpoint / (plan.model_bytes / limits.disk),
        exchange_link=None if linked is None else exchange / linked,
    )


def _points(
    samples: Sequence[Sample], memory: ProcessMemory, began: float
) -> list[tuple[float, int]]:
    points = [
        (sample.time - began, _over(sample.rss, memory.idle_rss))
        for sample in samples
        # A zombie process has no memory.
        if sample.time >= began and sample.rss
    ]
    # Of neighbours that would fall on one point the highest is kept, so that no peak is lost.
    step = -(-len(points) // _MOST_POINTS) or 1
    groups = (points[start : start + step] for start in range(0, len(points), step))
    return [max(group, key=lambda point: point[1]) for group in groups]


def _idle_uss(
    process: str, samples: Mapping[str, Sequence[Sample]], ready: Mapping[str, float]
) -> int:
    """Return the USS in bytes of the sample closest to the time at which a process was ready."""
    read = [sample for sample in samples.get(process, ()) if sample.uss is not None]
    if process not in ready or not read:
        return 0
    closest = min(read, key=lambda sample: abs(sample.time - ready[process]))
    return closest.uss or 0


def _over(peak: int, idle: int) -> int:
    # The kernel counts a peak a little late, so that it may lie below the value read at idle.
    return max(peak - idle, 0)
