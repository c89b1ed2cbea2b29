"""A training script's side of a run: one task after another, each fetched, done and answered."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from flstream.client.fl_model import FLModel
from flstream.client.messages import (
    Evaluation,
    Logged,
    Ready,
    Received,
    Stop,
    Task,
    ToSite,
    Trained,
)
from flstream.client.seeding import seed_everything
from flstream.errors import ChannelClosedError, ClientError, DeadlineError
from flstream.model.layout import Layout
from flstream.model.memory import Framework, MemoryBody, Params
from flstream.streaming.download import download
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.service import DownloadService
from flstream.telemetry.events import SERVER
from flstream.telemetry.memory import own_rss
from flstream.transport.messages import MessageChannel

if TYPE_CHECKING:
    import torch


RESERVED_METRICS = frozenset({"round", "train"})
"""Keys of the summary's table of metrics that are not metrics."""


class SiteInfo(msgspec.Struct, frozen=True):
    """What a site knows of the run.

    Attributes:
        name: of the site, ``site-1`` and up.
        job: name of the job.
        clients: number of sites in the job.
        rounds: number of rounds.
        seed: of the job.
        folder: a folder of the site's own in the run directory.
        exchange_format: what ``receive()`` hands the script.
        streaming: how to fetch the model.
    """

    name: str
    job: str
    clients: int
    rounds: int
    seed: int
    folder: str
    exchange_format: Framework
    streaming: StreamSettings


class Session:
    """What the functions of :mod:`flstream.client` work on.

    Args:
        info: what the site knows of the run.
        control: messages to and from the server.
        down: where the server's models arrive.
        service: where this site's updates are on offer to the server.
    """

    def __init__(
        self,
        info: SiteInfo,
        control: MessageChannel[ToSite],
        down: Receiver,
        service: DownloadService,
    ) -> None:
        self.info = info
        self._control = control
        self._down = down
        self._service = service
        self._initialised = False
        self.stopped = False
        self._task: Task | None = None
        self._model: FLModel | None = None
        # Which names the model ties, since training may break the ties in what it sends.
        self._tied: Mapping[str, str] | None = None

    def init(self) -> None:
        """Report to the server. What memory the process has now counts as its idle."""
        if not self._initialised:
            self._initialised = True
            self._control.send(Ready(os.getpid(), own_rss()))

    def is_running(self) -> bool:
        """Wait for the next task; False when there are no more."""
        return self._next_task(timeout=None)

    def receive(
        self,
        timeout: float | None = None,
        into: torch.nn.Module | Mapping[str, torch.Tensor] | None = None,
    ) -> FLModel | None:
        """Fetch the model of the next task; None when there is none, or none within ``timeout``."""
        if not self._next_task(timeout):
            return None
        task = self._current_task()
        if self._model is not None:
            raise ClientError(
                f"the model of round {task.round} was received before; answer it with send() first"
            )
        seed_everything(task.seed)
        body, cost = download(self._down, task.ref, self.info.streaming, self._sink_for(into))
        self._tied = body.layout.aliases
        self._control.send(Received(task.round, cost.retries))
        self._model = FLModel(
            params=body.tensors,
            current_round=task.round - 1,
            total_rounds=task.total_rounds,
            meta={"site_name": self.info.name, "task": task.kind},
        )
        return self._model

    def send(self, model: FLModel, clear_cache: bool = True) -> None:
        """Answer the task, and wait until the server has what it needs of it."""
        task = self._current_task()
        metrics = _metrics_of(model)
        weight = _weight_of(model)
        if task.kind == "evaluate":
            has_params = model.params is not None
            self._control.send(Evaluation(task.round, weight, metrics, has_params))
        else:
            self._offer_update(task, model, weight, metrics)
        if clear_cache:
            model.params = None
            if self._model is not None:
                self._model.params = None
        self._task = None
        self._model = None

    def _offer_update(
        self, task: Task, model: FLModel, weight: float, metrics: dict[str, float]
    ) -> None:
        if model.params is None:
            raise ClientError(
                f"the answer to round {task.round}'s training has no params; "
                "send FLModel(params=..., ...)"
            )
        ref = self._service.offer(MemoryBody.of(model.params, tied=self._tied), [SERVER])
        self._control.send(
            Trained(
                task.round,
                ref.token,
                weight,
                model.params_type.value,
                _framework_of(model.params),
                metrics,
            )
        )
        outcome = ref.wait()
        if not outcome.ok:
            print(
                f"flstream: the update of round {task.round} was not used: {outcome.reason}",
                file=sys.stderr,
                flush=True,
            )

    def log(self, key: str, value: float) -> None:
        """Send a value to the run's events."""
        number = self._task.round if self._task else 0
        self._control.send(Logged(number, key, float(value)))

    @property
    def kind(self) -> str | None:
        """What the current task asks for, or None between tasks."""
        return self._task.kind if self._task else None

    def _next_task(self, timeout: float | None) -> bool:
        if not self._initialised:
            raise ClientError("call flstream.client.init() before anything else")
        if self._task is None and not self.stopped:
            try:
                message = self._control.receive(timeout)
            except DeadlineError:
                return False
            except ChannelClosedError:
                message = Stop()
            if isinstance(message, Stop):
                self.stopped = True
            else:
                self._task = message
        return self._task is not None

    def _current_task(self) -> Task:
        if self._task is None:
            raise ClientError("there is no task to answer; call receive() first")
        return self._task

    def _sink_for(
        self, into: torch.nn.Module | Mapping[str, torch.Tensor] | None
    ) -> Callable[[Layout], MemoryBody]:
        if into is None:
            return lambda layout: MemoryBody.allocate(layout, self.info.exchange_format)
        body = MemoryBody.over(into)

        def existing(layout: Layout) -> MemoryBody:
            difference = layout.difference(body.layout)
            if difference:
                raise ClientError(f"the model does not fit what it is received into: {difference}")
            return body

        return existing


def _metrics_of(model: FLModel) -> dict[str, float]:
    metrics = {name: float(value) for name, value in (model.metrics or {}).items()}
    for name in metrics.keys() & RESERVED_METRICS:
        raise ClientError(f"a metric may not be named {name!r}, which the summary uses; rename it")
    return metrics


def _weight_of(model: FLModel) -> float:
    for key in ("num_examples", "NUM_STEPS_CURRENT_ROUND"):
        if key in model.meta:
            weight = float(model.meta[key])
            if not (math.isfinite(weight) and weight > 0):
                raise ClientError(f"meta[{key!r}] is {weight}; an update's weight must be above 0")
            return weight
    return 1.0


def _framework_of(params: Params) -> Framework:
    arrays = all(isinstance(value, np.ndarray | np.generic) for value in params.values())
    return "numpy" if arrays and params else "pytorch"
