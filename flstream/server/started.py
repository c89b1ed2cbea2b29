"""The event that a run begins with, which tells readers what they have to know of its job."""

from __future__ import annotations

from collections.abc import Sequence

from flstream.job import Job
from flstream.job.scoring import ScoreSource
from flstream.server.stream_settings import stream_settings
from flstream.telemetry.events import RunStarted


def run_started(job: Job, score_sources: Sequence[ScoreSource]) -> RunStarted:
    """The event for a job.

    Args:
        job: The job.
        score_sources: For each of its workflows, what scores its models.
    """
    settings = stream_settings(job, job.train.exchange_format)
    clients = job.clients
    return RunStarted(
        job=job.name,
        seed=job.seed,
        rounds=job.planned_rounds,
        clients=clients.count,
        names=clients.names or [],
        mode="native" if settings.chunk_size == 0 else job.streaming.mode,
        chunk_size=settings.chunk_size,
        workers=clients.worker_names if clients.workers < clients.count else [],
        key_metric=job.key_metric,
        key_metric_mode=job.key_metric_mode,
        evaluate=list(score_sources),
        network={
            site: link.facts
            for site, link in job.network.links(clients.site_names, job.seed).items()
        },
    )
