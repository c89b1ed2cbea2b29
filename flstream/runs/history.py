"""The history of a run: the one fold of the events of its journal, ``events.jsonl``.

A run may be cut off and resumed any number of times. A resume cuts the journal after the last
effect that is done, so that each line counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from flstream.runs.best import BestEvaluation, BestRound
from flstream.runs.round_record import RoundRecord
from flstream.runs.site_record import SiteRecord, SiteRecords
from flstream.runs.site_scores import Columns, packed
from flstream.telemetry.events import (
    AnyEvent,
    EffectDone,
    EndedEarly,
    Evaluated,
    Metrics,
    ModelReady,
    ModelRecord,
    ModelScored,
    ModelWritten,
    ProcessEnded,
    ProcessReady,
    RoundFinished,
    RoundStarted,
    RunFinished,
    RunResumed,
    RunStarted,
    SiteFailed,
    SiteSuspended,
    Transfer,
    Warned,
)

if TYPE_CHECKING:
    from flstream.job import Job

Status = Literal["running", "finished", "failed", "stopped"]

_UNKNOWN = RunStarted(
    job="",
    seed=0,
    rounds=0,
    mode="pull",
    chunk_size=0,
    clients=0,
    key_metric="accuracy",
    key_metric_mode="max",
)


def run_started(job: Job) -> RunStarted:
    """The event that a run of a job begins with."""
    clients, streaming = job.clients, job.streaming
    is_numpy = job.train.exchange_format == "numpy"
    size = streaming.np_download_chunk_size if is_numpy else streaming.tensor_download_chunk_size
    is_native = streaming.mode == "native" or size == 0
    return RunStarted(
        job=job.name,
        seed=job.seed,
        rounds=job.planned_rounds,
        clients=clients.count,
        names=clients.names or [],
        mode="native" if is_native else streaming.mode,
        chunk_size=0 if is_native else size,
        workers=clients.worker_names if clients.workers < clients.count else [],
        key_metric=job.key_metric,
        key_metric_mode=job.key_metric_mode,
        network={
            site: link.facts
            for site, link in job.network.links(clients.site_names, job.seed).items()
        },
    )


class History:
    """The state of a run, added up from its events in the order of the journal.

    Attributes:
        facts: Event that the last sitting began with; empty values if no server came that far.
        sittings: Begin and end, in seconds since the epoch, of each stretch in which the run was
            going on: from its begin or a resume to its end.
        resumes: Events that each sitting but the first began with.
        idle_rss: Resident bytes of each process after its imports, by name.
        peak_rss: Highest resident bytes of each process at its end, by name.
        first_round_began: When the first round began, in seconds since the epoch; 0 before.
        status: How the run ended; ``running`` where no end of it counts.
        error: Why it failed or was stopped; empty without a reason.
        ended_early: Why there are fewer rounds than the job has; None if there are not.
        model_bytes: Bytes of the model's body.
        model_tensors: Number of its tensors.
        digest: Digest of the newest durable model; empty without one.
        models: Models, oldest first; the initial one is version 0.
        rounds: Rounds that came to their end, in order, from round 1.
        scores: Metrics of the last evaluation of each round, in order.
        is_received: Whether the last evaluation was by metrics that came with updates.
        site_scores: Each site's metrics of that evaluation, where they are known.
        failures: Sites that had no part in a round, in order.
        suspended: Sites that are asked no more, in the order in which that came about.
        warnings: Sentences, each once.
        down: Transfers of models to the sites.
        up: Transfers of updates to the server.
        written: Round and step of each model that was written, or about to be.
    """

    def __init__(self) -> None:
        self.facts = _UNKNOWN
        self.sittings: list[tuple[float, float]] = []
        self.resumes: list[RunResumed] = []
        self.idle_rss: dict[str, int] = {}
        self.peak_rss: dict[str, int] = {}
        self.first_round_began = 0.0
        self.status: Status = "running"
        self.error = ""
        self.ended_early: str | None = None
        self.model_bytes = self.model_tensors = 0
        self.digest = ""
        self.models: list[ModelRecord] = []
        self.rounds: list[RoundRecord] = []
        self.scores: dict[int, Metrics] = {}
        self.is_received = False
        self.site_scores: dict[int, Columns] = {}
        self.failures: list[SiteFailed] = []
        self.suspended: list[str] = []
        self.warnings: list[str] = []
        self.down = self.up = Transfer()
        self.written: set[tuple[int, int]] = set()
        self._sites = SiteRecords()
        # Of all rounds, also of those that came to no end.
        self._records: dict[int, RoundRecord] = {}
        self._round_under_way: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written yet."""
        return not self.sittings

    @property
    def seconds(self) -> float:
        """Running time: seconds from the first event to the last of each sitting, added up."""
        return sum(end - begin for begin, end in self.sittings)

    @property
    def round_under_way(self) -> int | None:
        """The round that was under way when the events end; None if none was."""
        return self._round_under_way if self.status != "finished" else None

    @property
    def last_round(self) -> int | None:
        """The last completed round; 0 with only an initial model, None without one."""
        if self.rounds:
            return self.rounds[-1].number
        return 0 if self.models else None

    @property
    def best(self) -> BestEvaluation | None:
        """The best evaluation by the job's key metric; None until one has a finite value."""
        best = BestRound(self.facts.key_metric, self.facts.key_metric_mode)
        for number, metrics in self.scores.items():
            best.compare(number, metrics)
        return best.best

    @property
    def sites(self) -> Mapping[str, SiteRecord]:
        """Records of the sites that were asked to do anything, by name."""
        return self._sites.by_name

    def apply(self, event: AnyEvent) -> None:
        """Add one event, in the order of the journal."""
        self._add_time(event)
        self._sites.apply(event)
        match event:
            case ModelWritten():
                self.written.add((event.round, event.step))
            case RunStarted():
                self.facts = event
                self.status, self.error, self.ended_early = "running", "", None
            case RunResumed():
                self.resumes.append(event)
                self._round_under_way = None
                for message in event.warnings:
                    self._warn(message)
            case ProcessReady():
                self.idle_rss[event.process] = event.idle_rss
            case ProcessEnded():
                known = self.peak_rss.get(event.process, 0)
                self.peak_rss[event.process] = max(known, event.peak_rss)
            case RoundStarted():
                self._round_under_way = event.round
                self.first_round_began = self.first_round_began or event.time
            case ModelReady() if not self.models:
                self.model_bytes, self.model_tensors = event.bytes, event.tensors
                self._add_model(ModelRecord(0, 0, 0, event.digest))
            case EffectDone(model=ModelRecord() as model):
                self._add_model(model)
            case RoundFinished():
                self._finish_round(event)
            case Evaluated():
                self._evaluate(event)
            case ModelScored():
                self.down += event.down
            case SiteFailed():
                self.failures.append(event)
            case SiteSuspended():
                self.suspended.append(event.site)
            case EndedEarly():
                self.ended_early = event.reason
            case Warned():
                self._warn(event.message)
            case RunFinished():
                self.status, self.error = event.status, event.error

    def _add_time(self, event: AnyEvent) -> None:
        if isinstance(event, RunResumed) and self.sittings:
            begin, end = self.sittings[-1]
            self.sittings[-1] = begin, max(end, event.until)
        if isinstance(event, RunResumed) or not self.sittings:
            self.sittings.append((event.time, event.time))
        elif event.time > self.sittings[-1][1]:  # a clock that was set back shortens no sitting
            self.sittings[-1] = (self.sittings[-1][0], event.time)

    def _warn(self, message: str) -> None:
        # The server of a later sitting does not know which warnings were given already.
        if message not in self.warnings:
            self.warnings.append(message)

    def _add_model(self, model: ModelRecord) -> None:
        self.models.append(model)
        self.digest = model.digest

    def _finish_round(self, event: RoundFinished) -> None:
        record = self._record(event.round)
        record.finish(event)
        self.rounds.append(record)
        self._round_under_way = None
        self.down += event.down
        self.up += event.up
        self.digest = event.digest

    def _evaluate(self, event: Evaluated) -> None:
        # Metrics that come with the updates of a round score the model of the round before.
        self._record(event.round).evaluate(event)
        self.scores[event.round] = event.metrics
        self.is_received = event.received
        self.site_scores[event.round] = packed(event.sites)
        self.down += event.down

    def _record(self, number: int) -> RoundRecord:
        return self._records.setdefault(number, RoundRecord(number))
