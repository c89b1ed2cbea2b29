"""Facts about the run and a worker, which the worker is started with."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from flstream.job.bodies import OptimizerState
from flstream.job.codecs import CodecPlan
from flstream.job.filters import FilterSection
from flstream.job.link import NetworkLink
from flstream.model.memory import Framework
from flstream.streaming.settings import StreamSettings


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
