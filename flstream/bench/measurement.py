"""What a run was, in figures: from its summary, and from the samples of its processes' memory."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple

import msgspec

from flstream.bench.plan import ROUNDS
from flstream.simulator.files.summary import Summary
from flstream.telemetry.events import SERVER
from flstream.telemetry.memory import ProcessMemory, Sample

# As many points as a picture can show.
_MOST_POINTS = 2000


@dataclass(frozen=True)
class Measurement:
    """One run of one case; seconds and bytes are plain numbers. Idle is after a process's imports.

    Attributes:
        download: seconds until every client had the model, in the measured round.
        upload_and_fold: seconds until every update was folded.
        checkpoint: seconds until the next model was durable.
        train: seconds that the clients took to change the model.
        requests: requests a round, both ways, of all clients.
        server_idle_rss: of the server.
        server_idle_uss: of the server.
        server_peak_rss: over the server's idle.
        server_peak_uss: over the server's idle.
        client_idle_rss: of the client with the highest peak.
        client_idle_uss: of the client with the highest peak.
        client_peak_rss: over idle, of the client with the highest peak.
        client_peak_uss: over idle, of the client with the highest peak.
        total_peak_pss: of all processes at one time, with what they have at idle. Where PSS was not
            read, it is carried on with RSS; :mod:`flstream.telemetry.memory` says how.
        wall_seconds: of the whole run, from its first process to its last.
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
    """Memory over time in one run: of the server, and of the client with the highest peak.

    Attributes:
        server: pairs of seconds since the first round began, and bytes of RSS over idle.
        client: the same.
    """

    server: list[tuple[float, int]]
    client: list[tuple[float, int]]


@dataclass
class Moments:
    """When things happened in a run, in seconds since the epoch.

    Attributes:
        ready: when each process had done its imports, by its name.
        first_round: when the first round began; 0 if it did not.
    """

    ready: dict[str, float]
    first_round: float = 0.0


def median(runs: Sequence[Measurement]) -> Measurement:
    """The median of each figure over the runs, of which there is at least one."""
    rows = [asdict(run) for run in runs]
    return Measurement(
        **{
            field.name: statistics.median(row[field.name] for row in rows)
            for field in fields(Measurement)
        }
    )


def read_samples(path: Path) -> dict[str, list[Sample]]:
    """The samples of a run's ``memory.jsonl``, by process, in their order in time."""
    decoder = msgspec.json.Decoder(Sample)
    samples: dict[str, list[Sample]] = {}
    with path.open("rb") as file:
        for line in file:
            sample = decoder.decode(line)
            samples.setdefault(sample.process, []).append(sample)
    return samples


def figures(
    summary: Summary, samples: Mapping[str, Sequence[Sample]], moments: Moments
) -> Measurement:
    """The figures of a run that finished."""
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
    """The client with the highest peak over its idle."""
    clients = summary.memory.clients
    return max(clients, key=lambda name: clients[name].over_idle)


def trace(summary: Summary, samples: Mapping[str, Sequence[Sample]], moments: Moments) -> Trace:
    """How the memory of a run went."""
    client, memory = largest_client(summary), summary.memory
    return Trace(
        _points(samples.get(SERVER, ()), memory.server, moments),
        _points(samples.get(client, ()), memory.clients[client], moments),
    )


def _points(
    samples: Sequence[Sample], memory: ProcessMemory, moments: Moments
) -> list[tuple[float, int]]:
    points = [
        (sample.time - moments.first_round, _over(sample.rss, memory.idle_rss))
        for sample in samples
        # A process that has ended, and was not waited for yet, has no memory.
        if sample.time >= moments.first_round and sample.rss
    ]
    # Of neighbours that would fall on one point the highest is kept: peaks are what is looked for.
    step = -(-len(points) // _MOST_POINTS) or 1
    groups = (points[start : start + step] for start in range(0, len(points), step))
    return [max(group, key=lambda point: point[1]) for group in groups]


def _idle_uss(process: str, samples: Mapping[str, Sequence[Sample]], moments: Moments) -> int:
    """USS at the sample that is closest to the process's own word that it is idle."""
    ready = moments.ready.get(process)
    read = [sample for sample in samples.get(process, ()) if sample.uss is not None]
    if ready is None or not read:
        return 0
    closest = min(read, key=lambda sample: abs(sample.time - ready))
    return closest.uss or 0


def _over(peak: int, idle: int) -> int:
    # The kernel counts a peak a little late, so that it may lie below what was read at idle.
    return max(peak - idle, 0)
