"""History of a run: the one fold of its journal's events, ``events.jsonl``.

A run may be cut off and resumed any number of times. A resume cuts the journal after the last
effect that is done, so that each line counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from flstream.runs.best import BestEvaluation, BestRound
from flstream.runs.simulated_times import SimulatedTimes
from flstream.runs.site_scores import SiteColumns
from flstream.telemetry.events import (
    EVALUATOR,
    AnyEvent,
    BaseReady,
    EffectDone,
    EndedEarly,
    Evaluated,
    Metrics,
    ModelReady,
    ModelRecord,
    ModelScored,
    ModelWritten,
    PrivacySpent,
    ProcessEnded,
    ProcessReady,
    RoundFinished,
    RoundStarted,
    RunFinished,
    RunResumed,
    RunStarted,
    SiteFailed,
    SitePhaseChanged,
    SiteSuspended,
    Transfer,
    Warned,
)

if TYPE_CHECKING:
    from flstream.job import Job

Status = Literal["running", "finished", "failed", "stopped"]

PHASES = ("download", "train", "upload and fold", "checkpoint", "evaluate")
"""Phases of a round, in order."""

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


class RoundRecord(msgspec.Struct):
    """A round: seconds, metrics, transfers and privacy.

    Attributes:
        number: Number of the round, from 1; 0 for evaluations of the initial model.
        phases: Seconds of download, training, upload and fold, and checkpoint.
        evaluation: Seconds of all its evaluations.
        trained: Metrics that the sites reported with their updates.
        down: Transfers of models to the sites, evaluations included.
        up: Transfers of the updates.
        privacy: Privacy spent up to its end; None where the job is not private.
        aggregator: Site in whose process the updates were folded; empty for the server's.
        simulated_seconds: Seconds from the run's beginning to its end, by the virtual clock; None
            without one.
    """

    number: int
    phases: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    evaluation: float = 0.0
    trained: Metrics = {}
    down: Transfer = Transfer()
    up: Transfer = Transfer()
    privacy: PrivacySpent | None = None
    aggregator: str = ""
    simulated_seconds: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds of all phases together."""
        return sum(self.phases) + self.evaluation


class SiteRecord(msgspec.Struct):
    """A site over the whole run: updates, weights, failures, seconds of work.

    Attributes:
        name: Name of the site.
        updates: Number of its updates that are part of models.
        weight: Sum of its weights in them.
        downloads: Seconds of its downloads of models to train, if it has a process of its own.
        trains: Seconds of its training, in all, if it has a process of its own.
        slowest: Seconds of its slowest training.
        failures: Rounds in which it had no part.
        late: Rounds of these that merely went on without it, or in which its device left.
        is_suspended: Whether it is asked no more.
    """

    name: str
    updates: int = 0
    weight: float = 0.0
    downloads: float = 0.0
    trains: float = 0.0
    slowest: float = 0.0
    failures: int = 0
    late: int = 0
    is_suspended: bool = False


def run_started(job: Job) -> RunStarted:
    """Make the event of a job's start."""
    clients, chunk_size = job.clients, job.streaming.chunk_size(job.train.exchange_format)
    return RunStarted(
        job=job.name,
        seed=job.seed,
        rounds=job.planned_rounds,
        clients=clients.count,
        names=clients.names or [],
        mode=job.streaming.mode if chunk_size else "native",
        chunk_size=chunk_size,
        workers=clients.worker_names if clients.share_workers else [],
        key_metric=job.key_metric,
        key_metric_mode=job.key_metric_mode,
        network={site: link.facts for site, link in job.links(clients.site_names).items()},
        has_evaluator=job.is_scored_centrally,
        clock=job.time.clock,
    )


class History:
    """State of a run, added up from its events in the journal's order.

    Args:
        keeps_times: Whether to add up the simulated times of trainings.

    Attributes:
        facts: Event that the last sitting began with; empty values if no server came that far.
        sittings: Begin and end, in seconds since the epoch, of each stretch in which the run was
            going on: from its begin or a resume to its end.
        resumes: Events that each sitting but the first began with.
        idle_rss: Resident bytes of each process after its imports, by name.
        peak_rss: Highest resident bytes of each process at its end, by name.
        status: How the run ended; ``running`` where no end of it counts.
        error: Why it failed or was stopped; empty without a reason.
        ended_early: Why there are fewer rounds than the job has; None if there are not.
        model_bytes: Bytes of the model's body.
        model_tensors: Number of its tensors.
        digest: Digest of the newest durable model; empty without one.
        order: Digest of the text for the order of the models' tensors; empty without one.
        base: The base that all sites share; None without one.
        models: Models, oldest first; the initial one is version 0.
        rounds: Rounds that came to their end, in order, from round 1.
        scores: Metrics of the last evaluation of each round, in order.
        is_received: Whether the last evaluation was by metrics that came with updates.
        site_scores: Each site's metrics of that evaluation, where they are known.
        site_means: Means of sites' metrics by round, where the evaluator scores models.
        failures: Sites that had no part in a round, in order.
        suspended: Sites that are asked no more, in the order in which that came about.
        warnings: Sentences, each once.
        down: Transfers of models to the sites.
        up: Transfers of updates to the server.
        written: Round and step of each model that was written, or about to be.
        sites: Records of the sites that were asked to do anything, by name.
        times: Simulated times of trainings; None on the wall clock, and where they are not kept.
    """

    def __init__(self, *, keeps_times: bool = False) -> None:
        self.facts = _UNKNOWN
        self.times: SimulatedTimes | None = None
        self._keeps_times = keeps_times
        self.sittings: list[tuple[float, float]] = []
        self.resumes: list[RunResumed] = []
        self.idle_rss: dict[str, int] = {}
        self.peak_rss: dict[str, int] = {}
        self.status: Status = "running"
        self.error = ""
        self.ended_early: str | None = None
        self.model_bytes = self.model_tensors = 0
        self.digest = self.order = ""
        self.base: BaseReady | None = None
        self.models: list[ModelRecord] = []
        self.rounds: list[RoundRecord] = []
        self.scores: dict[int, Metrics] = {}
        self.is_received = False
        self.site_scores: dict[int, SiteColumns] = {}
        self.site_means: dict[int, Metrics] = {}
        self.failures: list[SiteFailed] = []
        self.suspended: list[str] = []
        self.warnings: list[str] = []
        self.down = self.up = Transfer()
        self.written: set[tuple[int, int]] = set()
        self.sites: dict[str, SiteRecord] = {}
        # Records of all rounds, unfinished ones too.
        self._records: dict[int, RoundRecord] = {}
        self._round_under_way: int | None = None
        self._last_asked = 0  # the round in which sites were asked last
        # Phase of each working site, and since when; only a site's own process reports it.
        self._phases: dict[str, tuple[str, float]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the journal has no event yet."""
        return not self.sittings

    @property
    def seconds(self) -> float:
        """Running time in seconds: of each sitting, from its first event to its last."""
        return sum(end - begin for begin, end in self.sittings)

    @property
    def round_under_way(self) -> int | None:
        """Round in progress at the end of the events; None if none was."""
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

    def apply(self, event: AnyEvent) -> None:
        """Add one event, in the order of the journal."""
        self._add_time(event)
        match event:
            case ModelWritten():
                self.written.add((event.round, event.step))
            case RunStarted():
                self.facts = event
                self.status, self.error, self.ended_early = "running", "", None
                if self._keeps_times and event.clock == "virtual" and self.times is None:
                    self.times = SimulatedTimes()
            case RunResumed():
                self.resumes.append(event)
                self._round_under_way = None
                self._phases.clear()
                for message in event.warnings:
                    self._warn(message)
            case ProcessReady():
                self.idle_rss[event.process] = event.idle_rss
            case ProcessEnded():
                known = self.peak_rss.get(event.process, 0)
                self.peak_rss[event.process] = max(known, event.peak_rss)
            case RoundStarted():
                self._ask(event)
            case SitePhaseChanged():
                self._change_phase(event)
            case BaseReady():
                self.base = event
            case ModelReady() if not self.models:
                self.model_bytes, self.model_tensors = event.bytes, event.tensors
                self.order = event.order
                self._add_model(ModelRecord(0, 0, 0, event.digest))
            case EffectDone():
                if event.model is not None:
                    self._add_model(event.model)
                if self.times is not None:
                    self.times.apply(event)
            case RoundFinished():
                self._finish_round(event)
            case Evaluated():
                self._evaluate(event)
            case ModelScored():
                self.down += event.down
            case SiteFailed():
                self.failures.append(event)
                self._phases.pop(event.site, None)
                site = self._site(event.site)
                site.failures, site.late = site.failures + 1, site.late + event.late
            case SiteSuspended():
                self.suspended.append(event.site)
                self._site(event.site).is_suspended = True
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

    def _ask(self, event: RoundStarted) -> None:
        self._round_under_way = event.round
        if event.round != self._last_asked:
            self._phases.clear()
        for site in event.sites:
            self._phases.pop(site, None)
        self._last_asked = event.round

    def _change_phase(self, event: SitePhaseChanged) -> None:
        if event.site == EVALUATOR:
            return
        phase, since = self._phases.get(event.site, ("", 0.0))
        self._phases[event.site] = event.state, event.time
        site, seconds = self._site(event.site), max(event.time - since, 0.0)
        if (phase, event.state) == ("downloading", "training"):
            site.downloads += seconds
        elif phase == "training":
            site.trains += seconds
            site.slowest = max(site.slowest, seconds)

    def _finish_round(self, event: RoundFinished) -> None:
        record = self._record(event.round)
        record.phases, record.trained = event.phases, event.metrics
        record.privacy, record.aggregator = event.privacy, event.aggregator
        record.simulated_seconds = event.simulated_seconds
        record.down += event.down
        record.up += event.up
        self.rounds.append(record)
        self._round_under_way = None
        self.down += event.down
        self.up += event.up
        self.digest = event.digest
        for name, weight in event.weights.items():
            site = self._site(name)
            site.updates += event.updates.get(name, 1)
            site.weight += weight

    def _evaluate(self, event: Evaluated) -> None:
        # Metrics that come with the updates of a round score the model of the round before.
        record = self._record(event.round)
        record.evaluation += event.seconds
        record.down += event.down
        self.down += event.down
        if not event.received or event.site_metrics is None:
            self.scores[event.round] = event.metrics
        self.is_received = event.received
        if event.site_metrics is not None:
            if not event.sites:
                return
            self.site_means[event.round] = event.site_metrics
        self.site_scores[event.round] = SiteColumns.of(event.scored, event.sites)

    def _record(self, number: int) -> RoundRecord:
        return self._records.setdefault(number, RoundRecord(number))

    def _site(self, name: str) -> SiteRecord:
        return self.sites.setdefault(name, SiteRecord(name))
