"""Figures of a run, from its summary and the memory samples of its processes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple

import msgspec

from flstream.bench.plan import ROUNDS
from flstream.runs.summary import Summary
from flstream.telemetry.events import SERVER
from flstream.telemetry.memory import ProcessMemory, Sample

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


@dataclass
class RunMoments:
    """Times of events in a run, in seconds since the epoch.

    Attributes:
        ready: times at which processes had done their imports, by process name.
        first_round: time at which the first round began; 0 if none did.
    """

    ready: dict[str, float]
    first_round: float = 0.0


def median(runs: Sequence[Measurement]) -> Measurement:
    """Return the median of each figure over one or more runs."""
    rows = [asdict(run) for run in runs]
    return Measurement(
        **{
            field.name: statistics.median(row[field.name] for row in rows)
            for field in fields(Measurement)
        }
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
    summary: Summary, samples: Mapping[str, Sequence[Sample]], moments: RunMoments
) -> Measurement:
    """Compute the figures of a finished run.

    Args:
        summary: summary of the run.
        samples: memory samples by process name, as from :func:`read_samples`.
        moments: times of the run's events.
    """
    steady, transfer = summary.rounds[-1], summary.transfer
    largest = largest_client(summary)
    server, client = summary.memory.server, summary.memory.clients[largest]
    server_uss = _idle_uss(SERVER, samples, moments)
    client_uss = _idle_uss(largest, samples, moments)
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


def trace(summary: Summary, samples: Mapping[str, Sequence[Sample]], moments: RunMoments) -> Trace:
    """Compute the memory over time of a finished run.

    Args:
        summary: summary of the run.
        samples: memory samples by process name, as from :func:`read_samples`.
        moments: times of the run's events.
    """
    client, memory = largest_client(summary), summary.memory
    return Trace(
        _points(samples.get(SERVER, ()), memory.server, moments),
        _points(samples.get(client, ()), memory.clients[client], moments),
    )


def _points(
    samples: Sequence[Sample], memory: ProcessMemory, moments: RunMoments
) -> list[tuple[float, int]]:
    points = [
        (sample.time - moments.first_round, _over(sample.rss, memory.idle_rss))
        for sample in samples
        # A zombie process has no memory.
        if sample.time >= moments.first_round and sample.rss
    ]
    # Of neighbours that would fall on one point the highest is kept, so that no peak is lost.
    step = -(-len(points) // _MOST_POINTS) or 1
    groups = (points[start : start + step] for start in range(0, len(points), step))
    return [max(group, key=lambda point: point[1]) for group in groups]


def _idle_uss(process: str, samples: Mapping[str, Sequence[Sample]], moments: RunMoments) -> int:
    """Return the USS in bytes of the sample closest to the time at which a process was ready."""
    ready = moments.ready.get(process)
    read = [sample for sample in samples.get(process, ()) if sample.uss is not None]
    if ready is None or not read:
        return 0
    closest = min(read, key=lambda sample: abs(sample.time - ready))
    return closest.uss or 0


def _over(peak: int, idle: int) -> int:
    # The kernel counts a peak a little late, so that it may lie below the value read at idle.
    return max(peak - idle, 0)
