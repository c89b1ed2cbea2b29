"""summary.json: what a run was, what came of it and what it cost. A contract for scripts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from flstream.job import Job
from flstream.telemetry.events import (
    SERVER,
    AnyEvent,
    EndedEarly,
    Evaluated,
    ModelReady,
    RoundFinished,
    RunFinished,
    RunResumed,
    RunStarted,
    SiteBenched,
    SiteFailed,
    Transfer,
    Warned,
)
from flstream.telemetry.memory import ProcessMemory

Status = Literal["running", "finished", "failed", "stopped"]


class ModelSummary(msgspec.Struct):
    """The model: bytes of its body, number of tensors, digest after the last completed round."""

    bytes: int = 0
    tensors: int = 0
    digest: str = ""


class Best(msgspec.Struct):
    """The round whose model scored best on the job's key metric."""

    round: int
    metric: str
    value: float


class TransferSummary(msgspec.Struct):
    """What moving models cost: ``down`` to the sites, ``up`` to the server."""

    mode: str = ""
    chunk_size: int = 0
    down: Transfer = msgspec.field(default_factory=Transfer)
    up: Transfer = msgspec.field(default_factory=Transfer)


class Failure(msgspec.Struct):
    """A site that had no part in a round, and why. Round 0 is before the first."""

    round: int
    site: str
    reason: str


class RoundSummary(msgspec.Struct):
    """Where the seconds of a round went."""

    round: int
    download: float
    train: float
    upload_and_fold: float
    checkpoint: float
    evaluate: float = 0.0

    @property
    def phases(self) -> tuple[float, float, float, float, float]:
        """Seconds of download, training, upload and fold, checkpoint, and evaluation."""
        return (self.download, self.train, self.upload_and_fold, self.checkpoint, self.evaluate)


class MemorySummary(msgspec.Struct):
    """Peaks in bytes: of the server, of each site, and of the whole run at one time."""

    server: ProcessMemory = msgspec.field(default_factory=ProcessMemory)
    clients: dict[str, ProcessMemory] = msgspec.field(default_factory=dict)
    peak_total_pss: int = 0


class Summary(msgspec.Struct):
    """The whole of it.

    Attributes:
        ended_early: why there are fewer rounds than the job has; None if there are not.
        failures: sites that had no part in a round.
        benched: sites that failed too often in a row, and are asked no more.
        metrics: one table a round: ``round``, each metric of its model, and under ``train`` what
            the sites reported with their updates.
    """

    status: Status = "running"
    error: str | None = None
    warnings: list[str] = msgspec.field(default_factory=list)
    job: str = ""
    seed: int = 0
    rounds_completed: int = 0
    ended_early: str | None = None
    clients: int = 0
    model: ModelSummary = msgspec.field(default_factory=ModelSummary)
    metrics: list[dict[str, Any]] = msgspec.field(default_factory=list)
    best: Best | None = None
    failures: list[Failure] = msgspec.field(default_factory=list)
    benched: list[str] = msgspec.field(default_factory=list)
    transfer: TransferSummary = msgspec.field(default_factory=TransferSummary)
    rounds: list[RoundSummary] = msgspec.field(default_factory=list)
    memory: MemorySummary = msgspec.field(default_factory=MemorySummary)
    wall_seconds: float = 0.0

    def to_json(self) -> str:
        """The summary as indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()


TALLIED = (
    RunStarted,
    RunResumed,
    ModelReady,
    RoundFinished,
    SiteFailed,
    SiteBenched,
    Evaluated,
    EndedEarly,
    Warned,
    RunFinished,
)
"""The kinds of events that a summary is made of: what :meth:`Tally.apply` does not pass over."""


class Tally:
    """Adds a run's events up to its summary.

    Args:
        job: for its sites, and the metric that decides which round was best.
        earlier: events that count of a run that was interrupted.
        earlier_seconds: how long it had been running.

    Attributes:
        summary: so far.
    """

    def __init__(
        self, job: Job, earlier: Iterable[AnyEvent] = (), earlier_seconds: float = 0.0
    ) -> None:
        self._args = job.workflow.args
        self._workers = job.clients.worker_names
        self._earlier_seconds = earlier_seconds
        self.summary = Summary(job=job.name, seed=job.seed, clients=job.clients.count)
        for event in earlier:
            self.apply(event)

    def apply(self, event: AnyEvent) -> None:
        """Take one event, in the order in which they happened."""
        summary = self.summary
        match event:
            case RunStarted():
                summary.ended_early = None
                summary.transfer.mode = event.mode
                summary.transfer.chunk_size = event.chunk_size
            case ModelReady():
                summary.model = ModelSummary(event.bytes, event.tensors, event.digest)
            case RoundFinished():
                self._finish_round(event)
            case Evaluated():
                summary.rounds[-1].evaluate = event.seconds
                summary.transfer.down += event.down
                summary.metrics[-1] = {**event.metrics, **summary.metrics[-1]}
                self._compare(event)
            case SiteFailed():
                summary.failures.append(Failure(event.round, event.site, event.reason))
            case SiteBenched():
                summary.benched.append(event.site)
            case EndedEarly():
                summary.ended_early = event.reason
            case Warned():
                self._warn(event.message)
            case RunResumed():
                for message in event.warnings:
                    self._warn(message)
            case RunFinished():
                summary.status = event.status
                summary.error = event.error or None

    def _warn(self, message: str) -> None:
        # A server that goes on for another does not know what that one has said already.
        if message not in self.summary.warnings:
            self.summary.warnings.append(message)

    def _finish_round(self, event: RoundFinished) -> None:
        summary = self.summary
        summary.rounds_completed = event.round
        summary.model.digest = event.digest
        summary.rounds.append(RoundSummary(event.round, *event.phases))
        trained = {"train": event.metrics} if event.metrics else {}
        summary.metrics.append({"round": event.round, **trained})
        summary.transfer.down += event.down
        summary.transfer.up += event.up

    def _compare(self, event: Evaluated) -> None:
        metric = self._args.key_metric
        value = event.metrics.get(metric)
        if value is None or not math.isfinite(value):
            return
        sign = 1 if self._args.key_metric_mode == "max" else -1
        best = self.summary.best
        if best is None or sign * value > sign * best.value:
            self.summary.best = Best(event.round, metric, value)

    def close(
        self, peaks: Mapping[str, ProcessMemory], peak_total_pss: int, wall_seconds: float
    ) -> Summary:
        """Add what only the launcher knows, and return the summary.

        Args:
            peaks: of each process, by name.
            peak_total_pss: in bytes, of all of them at one time.
            wall_seconds: since the run began or was resumed.
        """
        sites = {name: peaks[name] for name in self._workers if name in peaks}
        server = peaks.get(SERVER, ProcessMemory())
        self.summary.memory = MemorySummary(server, sites, peak_total_pss)
        self.summary.wall_seconds = self._earlier_seconds + wall_seconds
        return self.summary
