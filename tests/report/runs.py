"""Events of runs, as the server tells them to the live view."""

import journal_support

from flstream.report.live.run_state import LiveRun
from flstream.telemetry.events import (
    AnyEvent,
    ModelReady,
    ProcessReady,
    RoundStarted,
    Snapshot,
    Transfer,
    WorkerActivity,
)

MIB = 1 << 20
START = 1000.0
WORKERS = ["worker-1", "worker-2"]


def run_started(clients, workers, job="digits"):
    how = {"seed": 7, "rounds": 10, "mode": "pull", "chunk_size": 2 * MIB}
    return journal_support.run_started(time=START, job=job, clients=clients, workers=workers, **how)


def snapshot(phase, asked, workers, time=START, **counts):
    """A picture of round 1, in which each worker has a state and moved bytes."""
    works = [WorkerActivity(name, it[0], time, moved=it[1]) for name, it in workers.items()]
    return Snapshot(time=time, round=1, phase=phase, asked=asked, workers=works, **counts)


def started(clients: int = 3, job: str = "digits") -> list[AnyEvent]:
    """The events up to the first round's tasks, each site in a process of its own."""
    sites = [f"site-{number}" for number in range(1, clients + 1)]
    return [
        run_started(clients, [], job),
        *(ProcessReady(time=START, process=name, pid=1, idle_rss=MIB) for name in sites),
        ModelReady(time=START, bytes=64 * MIB, tensors=34, digest="0" * 32),
        RoundStarted(time=START, round=1, sites=sites),
        snapshot("downloading", clients, dict.fromkeys(sites, ("downloading", 0))),
    ]


def shared(clients: int = 1000, sampled: int = 100) -> list[AnyEvent]:
    """The events up to the first round's tasks, two processes for all sites."""
    sites = [f"site-{number}" for number in range(1, sampled + 1)]
    return [
        run_started(clients, WORKERS),
        *(ProcessReady(time=START, process=name, pid=1, idle_rss=MIB) for name in WORKERS),
        ModelReady(time=START, bytes=MIB, tensors=2, digest="0" * 32),
        RoundStarted(time=START, round=1, sites=sites),
    ]


def round_finished(number, time):
    nothing = {"down": Transfer(), "up": Transfer(), "weights": {}, "metrics": {"loss": 1.5}}
    return journal_support.round_finished(number, time=time, checkpoint=0.5, **nothing)


def evaluated(number, time, **metrics):
    return journal_support.evaluated(number, None, metrics=metrics, time=time, seconds=1.0)


def after(*events: AnyEvent) -> LiveRun:
    run = LiveRun(START)
    for event in events:
        run.apply(event)
    return run
