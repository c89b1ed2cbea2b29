"""Facts about the run and a worker, for the worker's start."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from flstream.client.learner import SiteContext, TimeLeft
from flstream.job import Job
from flstream.streaming.settings import StreamSettings
from flstream.worker.messages import SiteTask, Task


class WorkerInfo(msgspec.Struct, frozen=True):
    """Facts about the run and a worker.

    Attributes:
        name: Name of the worker: its site's name, or ``worker-1`` and so on.
        job: The job; of the evaluator, its own one.
        clients: Number of sites in the run.
        sites_folder: Path of the folder that holds each site's folder.
        streaming: Settings with which models are fetched.
        site: Name of the site whose own worker it is; None for a worker that sites share.
        gpus: Value of CUDA_VISIBLE_DEVICES for the worker; None to leave it as it is.
    """

    name: str
    job: Job
    clients: int
    sites_folder: str
    streaming: StreamSettings
    site: str | None = None
    gpus: str | None = None

    def args_of(self, site: str) -> dict[str, Any]:
        """Return the arguments of one site alone."""
        return self.job.clients.args.get(site, {})

    def context(self, task: Task, site: SiteTask, state_dir: Callable[[], Path]) -> SiteContext:
        """Return a site's part of a task as training code sees it.

        Args:
            task: The task.
            site: The site's part, as the server describes it.
            state_dir: Function that returns the folder of the site's own files, and lays it out.
        """
        return SiteContext(
            name=site.site,
            index=site.index,
            round=task.round,
            seed=site.seed,
            job=self.job.name,
            clients=self.clients,
            total_rounds=task.total_rounds,
            folder=f"{self.sites_folder}/{site.site}",
            args=self.args_of(site.site),
            model_args=self.job.model.args,
            _state_dir=state_dir,
            deadline=_deadline(site),
        )

    def constants(self, context: SiteContext | None) -> dict[str, Any]:
        """Return training code's facts that stay the same in every task of a site.

        Args:
            context: The site in a task; None before the first one of its own worker.
        """
        job, site = self.job, self.site if context is None else context.name
        index = None if context is None else context.index
        if context is None and site is not None:
            index = job.clients.site_names.index(site)
        return {
            "site_name": site,
            "site_index": index,
            "job_name": job.name,
            "job_id": job.name,
            "clients": self.clients,
            "total_rounds": job.planned_rounds,
            "seed": job.seed,
            "site_dir": f"{self.sites_folder}/{site}",
            "job_dir": str(job.folder),
            "site_args": dict(self.args_of(site or "")),
            "model_args": dict(job.model.args),
        }


def _deadline(site: SiteTask) -> TimeLeft:
    if (limit := site.deadline) is None:
        return TimeLeft()
    return TimeLeft(limit.seconds, math.inf if limit.examples is None else limit.examples)
