"""The facts about a job that the history of its run needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from flstream.runs.best import Mode
from flstream.telemetry.events import LinkFacts, RunStarted, default_site_names

if TYPE_CHECKING:
    from flstream.job import Job


@dataclass(frozen=True)
class JobFacts:
    """A job as a history knows it.

    Attributes:
        name: Name of the job.
        seed: Seed of the job.
        clients: Number of its sites.
        names: Names of its sites; none where they are ``site-1`` and up.
        workers: Names of the processes that share the sites; none where each has one of its own.
        key_metric: Metric that decides which round is the best.
        key_metric_mode: Whether its best value is the largest or the smallest.
        network: Emulated links of the sites by name; empty where there are none.
    """

    name: str = ""
    seed: int = 0
    clients: int = 0
    names: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    key_metric: str = "accuracy"
    key_metric_mode: Mode = "max"
    network: Mapping[str, LinkFacts] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job) -> JobFacts:
        """The facts of a job, for a run that has not begun, or whose events tell less."""
        clients = job.clients
        shared = clients.worker_names if clients.workers < clients.count else ()
        return cls(
            job.name,
            job.seed,
            clients.count,
            tuple(clients.names or ()),
            tuple(shared),
            job.key_metric,
            job.key_metric_mode,
        )

    def updated(self, event: RunStarted) -> JobFacts:
        """The facts that a run began with."""
        return replace(
            self,
            name=event.job,
            seed=event.seed,
            workers=tuple(event.workers),
            network=event.network,
            clients=event.clients,
            names=tuple(event.names),
            key_metric=event.key_metric,
            key_metric_mode=event.key_metric_mode,
        )

    @property
    def processes(self) -> tuple[str, ...]:
        """Names of the processes that do the work of sites."""
        return self.workers or self.names or tuple(default_site_names(self.clients))
