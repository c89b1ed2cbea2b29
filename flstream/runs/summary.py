"""The records of summary.json, which is a contract for scripts."""

from __future__ import annotations

from itertools import islice
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from flstream.runs.history import History, RoundRecord, Status
from flstream.runs.site_scores import by_site
from flstream.telemetry.events import (
    LinkFacts,
    PrivacySpent,
    Transfer,
)
from flstream.telemetry.memory import ProcessMemory

BESIDE_METRICS = frozenset({"round", "sites", "more_sites", "site_metrics", "train"})
"""What a table of metrics has beside the metrics of its model."""


# Sites that are listed by name; the rest is counted.
_MOST_LISTED = 1000


class ModelSummary(msgspec.Struct):
    """The model, as it is after the last completed round.

    Attributes:
        bytes: Bytes of its tensors.
        tensors: Number of its tensors.
        digest: Digest of its bytes, 32 hexadecimal digits: models with equal digests are equal, bit
            for bit. Empty before the first model is on disk.
        base_bytes: Bytes of the base that all sites share (``model.base``); absent without one.
        base_digest: Digest of the base.
    """

    bytes: int = 0
    tensors: int = 0
    digest: str = ""
    base_bytes: int | UnsetType = UNSET
    base_digest: str | UnsetType = UNSET


class BestSummary(msgspec.Struct):
    """The round whose model scored best on the job's key metric.

    Attributes:
        round: Number of the round that made the model; 0 for the initial model.
        metric: Name of the key metric (``workflow.args.key_metric``).
        value: Value of that metric.
    """

    round: int
    metric: str
    value: float


class TransferSummary(msgspec.Struct):
    """Cost of moving models over the whole run, evaluations included.

    Attributes:
        mode: Way that models took: ``pull``, ``native`` or ``map`` (``streaming.mode``).
        chunk_size: Bytes of the longest chunk; 0 where a model goes in one message.
        down: Models to the sites. Those that share a worker (``clients.parallel``) receive a model
            once, so only with a worker for each site these are the bytes of a deployment.
        up: Updates to the server.
    """

    mode: str = ""
    chunk_size: int = 0
    down: Transfer = msgspec.field(default_factory=Transfer)
    up: Transfer = msgspec.field(default_factory=Transfer)


class SiteFailure(msgspec.Struct):
    """A site that had no part in a round, and why.

    Attributes:
        round: Number of the round; 0 for what came before the first round.
        site: Name of the site.
        reason: Sentence that says why.
        signal: Name of the signal that killed its process; empty for none.
        exit_status: Status with which its process ended by itself; None if it did not.
        late: Whether it has not failed: the round merely went on without it, or its device left.
    """

    round: int
    site: str
    reason: str
    signal: str = ""
    exit_status: int | None = None
    late: bool = False


class RoundSummary(msgspec.Struct):
    """Seconds of a round's phases, the folding site, and the privacy spent by then.

    Where a workflow trains several times in a round, a phase is the sum over all of them.

    Attributes:
        round: Number of the round, from 1.
        download: Seconds from the start of a training until the last site has the model.
        train: Seconds from then until the last update is ready.
        upload_and_fold: Seconds from then until all updates are folded into the next model.
        checkpoint: Seconds from then until the next model is on disk.
        evaluate: Seconds from then until the last site has scored it; 0 without evaluations.
        aggregator: Site in whose process the updates were folded; empty for the server's.
        epsilon: Epsilon of all folds so far, at the job's delta; null where it is infinite. These
            three are absent without ``privacy.type``.
        clip_norm: Clipping norm of the round's last fold.
        clipped: Fraction of that fold's updates that were scaled down, from 0 to 1.
        simulated_seconds: Seconds from the run's beginning to the round's end, by the virtual
            clock; absent with ``time.clock = wall``.
    """

    round: int
    download: float
    train: float
    upload_and_fold: float
    checkpoint: float
    evaluate: float = 0.0
    aggregator: str = ""
    epsilon: float | UnsetType | None = UNSET
    clip_norm: float | UnsetType = UNSET
    clipped: float | UnsetType = UNSET
    simulated_seconds: float | UnsetType = UNSET

    @property
    def privacy(self) -> PrivacySpent | None:
        """Privacy spent up to the round's end; None where the job is not private."""
        match self.epsilon, self.clip_norm, self.clipped:
            case (float() | None as epsilon, float() as clip_norm, float() as clipped):
                return PrivacySpent(epsilon, clip_norm, clipped)
        return None

    @property
    def phases(self) -> tuple[float, float, float, float, float]:
        """Seconds of download, training, upload and fold, checkpoint, and evaluation."""
        return (self.download, self.train, self.upload_and_fold, self.checkpoint, self.evaluate)


class MemorySummary(msgspec.Struct):
    """Peaks in bytes: of the server, of each site, and of the whole run at one time.

    Attributes:
        server: The server.
        clients: Each site, or each worker that sites share.
        evaluator: The evaluator; absent where sites score models.
        peak_total_pss: All processes of the launcher's machine at one time, and those of each node,
            with pages that processes share counted once.
        nodes: All processes of each node of a cluster at one time; absent where all processes are
            on one machine.
        group_peak: The control group of all processes (``memory_limit``), with the cached pages of
            files that the kernel charges to it, and drops as the limit comes near; absent without
            a limit.
        group_peak_anonymous: The highest sample of the group's memory without these pages, which
            is what has to fit the limit; absent without one.
    """

    server: ProcessMemory = msgspec.field(default_factory=ProcessMemory)
    clients: dict[str, ProcessMemory] = msgspec.field(default_factory=dict)
    peak_total_pss: int = 0
    nodes: dict[str, int] | UnsetType = UNSET
    evaluator: ProcessMemory | UnsetType = UNSET
    group_peak: int | UnsetType = UNSET
    group_peak_anonymous: int | UnsetType = UNSET

    @property
    def largest_client(self) -> int:
        """Highest peak over idle of a client."""
        return max((client.over_idle for client in self.clients.values()), default=0)


class Summary(msgspec.Struct):
    """Whole content of summary.json.

    Attributes:
        status: How the run ended: ``finished``, ``failed``, or ``stopped`` by Ctrl-C.
        error: Sentence that says why the run failed; null if it did not.
        warnings: Sentences on what went wrong, though the run could continue.
        job: Name of the job.
        seed: Seed of the job.
        rounds_completed: Number of rounds whose model is on disk.
        ended_early: Why there are fewer rounds than the job has, such as ``stop_when``; null if
            there are not fewer.
        clients: Number of sites.
        model: Size and digest of the model.
        metrics: One object a round: ``round`` (its number), each metric of its model by name,
            ``sites`` (the metrics that each site found, by site: the first 1,000, and
            ``more_sites``, the number of the rest, where there are more) and ``train`` (metrics
            that the sites sent with their updates, their weighted mean). Where ``evaluate`` is
            ``received``, there is one for round 0, no ``train``, and no score of the last round's
            model. Beside an evaluator, ``site_metrics`` has the means over the sites that score,
            too.
        best: Best round by the key metric; null where no model was scored.
        evaluate: Who scored the last model: sites in evaluations of their own (``task``), sites by
            the metrics that they send with their updates, which score the model that they had
            received (``received``), or the evaluator (``server``).
        failures: Sites that had no part in a round: the first 1,000.
        more_failures: Number of those after them; absent without any.
        benched: Names of the sites that failed too often in a row, and are not asked any more.
        transfer: Cost of moving models.
        rounds: Seconds of each round's phases, one object a round.
        memory: Peaks of memory.
        wall_seconds: Seconds of the run from its start to its end; of a run that was resumed, the
            sum over its parts.
        simulated_seconds: Seconds from the run's beginning to the end of its last round, by the
            virtual clock; absent with ``time.clock = wall``.
        network: Emulated link of each site, by its name; absent without emulated links.
        settings: Values of the job file's keys by their dotted names, each as HOCON.
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
    best: BestSummary | None = None
    evaluate: Literal["task", "received", "server"] = "task"
    failures: list[SiteFailure] = msgspec.field(default_factory=list)
    more_failures: int | UnsetType = UNSET
    benched: list[str] = msgspec.field(default_factory=list)
    transfer: TransferSummary = msgspec.field(default_factory=TransferSummary)
    rounds: list[RoundSummary] = msgspec.field(default_factory=list)
    memory: MemorySummary = msgspec.field(default_factory=MemorySummary)
    wall_seconds: float = 0.0
    simulated_seconds: float | UnsetType = UNSET
    network: dict[str, LinkFacts] | UnsetType = UNSET
    settings: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def privacy(self) -> PrivacySpent | None:
        """Privacy that a private job has spent; None before its first fold."""
        return next((entry.privacy for entry in reversed(self.rounds) if entry.privacy), None)

    def to_json(self) -> str:
        """Return the summary as indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()


def summarize(history: History) -> Summary:
    """Return the summary of a history, without memory and seconds of the run."""
    facts, best = history.facts, history.best
    return Summary(
        status=history.status,
        error=history.error or None,
        warnings=list(history.warnings),
        job=facts.job,
        seed=facts.seed,
        rounds_completed=len(history.rounds),
        ended_early=history.ended_early,
        clients=facts.clients,
        model=ModelSummary(
            history.model_bytes,
            history.model_tensors,
            history.digest,
            UNSET if history.base is None else history.base.bytes,
            UNSET if history.base is None else history.base.digest,
        ),
        metrics=_metrics(history),
        best=best and BestSummary(best.round, facts.key_metric, best.value),
        evaluate=_scorer(history),
        failures=[
            msgspec.convert(event, SiteFailure, from_attributes=True)
            for event in history.failures[:_MOST_LISTED]
        ],
        more_failures=max(len(history.failures) - _MOST_LISTED, 0) or UNSET,
        benched=list(history.suspended),
        transfer=TransferSummary(facts.mode, facts.chunk_size, history.down, history.up),
        rounds=[round_summary(record) for record in history.rounds],
        simulated_seconds=_simulated(history.rounds[-1]) if history.rounds else UNSET,
        network=dict(facts.network) or UNSET,
    )


def _simulated(record: RoundRecord) -> float | UnsetType:
    return UNSET if record.simulated_seconds is None else record.simulated_seconds


def _scorer(history: History) -> Literal["task", "received", "server"]:
    """Return who scores the models of a run."""
    if history.facts.has_evaluator:
        return "server"
    return "received" if history.is_received else "task"


def _metrics(history: History) -> list[dict[str, Any]]:
    """Return the metrics of each round, after the initial model's if scored."""
    sites = history.facts.sites
    is_initial = 0 in history.scores or 0 in history.site_means
    initial = [RoundRecord(0)] if is_initial else []
    tables = []
    for record in [*initial, *history.rounds]:
        table: dict[str, Any] = {**history.scores.get(record.number, {}), "round": record.number}
        scored, columns = history.site_scores.get(record.number, ((), {}))
        scores = by_site([sites[number] for number in scored], columns)
        if scores:
            table["sites"] = dict(islice(scores.items(), _MOST_LISTED))
        if len(scores) > _MOST_LISTED:
            table["more_sites"] = len(scores) - _MOST_LISTED
        if record.number in history.site_means:
            table["site_metrics"] = dict(history.site_means[record.number])
        if record.trained:
            table["train"] = record.trained
        tables.append(table)
    return tables


def round_summary(record: RoundRecord) -> RoundSummary:
    """Return the summary of a round."""
    privacy = {} if record.privacy is None else msgspec.structs.asdict(record.privacy)
    return RoundSummary(
        record.number,
        *record.phases,
        record.evaluation,
        record.aggregator,
        simulated_seconds=_simulated(record),
        **privacy,
    )
