"""Facts about the run and a worker, for the worker's start."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from flstream.client.learner import SiteContext, TimeLeft
from flstream.job.bodies import OptimizerState
from flstream.job.codecs import CodecPlan
from flstream.job.filters import FilterSection
from flstream.job.model_section import BaseSection
from flstream.job.network_section import NetworkLink
from flstream.model.memory import Framework
from flstream.streaming.settings import StreamSettings
from flstream.worker.messages import SiteTask, Task


class WorkerInfo(msgspec.Struct, frozen=True):
    """Facts about the run and a worker.

    Attributes:
        name: Name of the worker: its site's name, or ``worker-1`` and so on.
        site: Name of the site whose own worker it is; None for a worker that sites share.
        index: Place of that site among all sites, from 0; None likewise.
        job: Name of the job.
        clients: Number of sites in the job.
        rounds: Number of rounds in the job.
        seed: Seed of the job.
        sites_folder: Path of the folder that holds each site's folder.
        job_folder: Path of the job file's folder.
        gpus: Value of CUDA_VISIBLE_DEVICES for the worker; None to leave it as it is.
        site_args: Arguments of one site alone, by site.
        model_args: Arguments of the model's factory.
        alias: Whose names the training code may import; None for nobody's.
        exchange_format: Kind of values that training code receives.
        streaming: Settings with which models are fetched.
        include: Regular expressions of the names of tensors that are aggregated; see
            :class:`flstream.job.sections.AggregationSection`.
        exclude: Regular expressions of the names of tensors that are not aggregated.
        optimizer_state: Value of ``train.optimizer_state``.
        filters_up: Filters of updates.
        filters_down: Filters of received models.
        codecs_up: Codecs of updates.
        codecs_down: Codecs of received models.
        links: Emulated links of its sites by name; empty where none are emulated.
        base: The base of the sites' models; None without one.
    """

    name: str
    site: str | None
    index: int | None
    job: str
    clients: int
    rounds: int
    seed: int
    sites_folder: str
    job_folder: str
    gpus: str | None
    site_args: dict[str, dict[str, Any]]
    model_args: dict[str, Any]
    alias: Literal["nvflare"] | None
    exchange_format: Framework
    streaming: StreamSettings
    include: list[str]
    exclude: list[str]
    optimizer_state: OptimizerState | None = None
    filters_up: list[FilterSection] = []
    filters_down: list[FilterSection] = []
    codecs_up: CodecPlan = CodecPlan()
    codecs_down: CodecPlan = CodecPlan()
    links: dict[str, NetworkLink] = {}
    base: BaseSection | None = None

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
            job=self.job,
            clients=self.clients,
            total_rounds=task.total_rounds,
            folder=f"{self.sites_folder}/{site.site}",
            args=self.site_args.get(site.site, {}),
            model_args=self.model_args,
            _state_dir=state_dir,
            deadline=_deadline(site),
        )

    def constants(self, context: SiteContext | None) -> dict[str, Any]:
        """Return training code's facts that stay the same in every task of a site.

        Args:
            context: The site in a task; None before the first one of its own worker.
        """
        site = self.site if context is None else context.name
        return {
            "site_name": site,
            "site_index": self.index if context is None else context.index,
            "job_name": self.job,
            "job_id": self.job,
            "clients": self.clients,
            "total_rounds": self.rounds,
            "seed": self.seed,
            "site_dir": f"{self.sites_folder}/{site}",
            "job_dir": self.job_folder,
            "site_args": dict(self.site_args.get(site or "", {})),
            "model_args": dict(self.model_args),
        }


def _deadline(site: SiteTask) -> TimeLeft:
    if (limit := site.deadline) is None:
        return TimeLeft()
    return TimeLeft(limit.seconds, math.inf if limit.examples is None else limit.examples)
