"""The picture of a run that is going on, kept by counting its events. It knows no terminal.

Counting an event costs the same with four sites and with a million: no event goes over all sites.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from flstream.report.metrics import flat_metrics
from flstream.report.text import nodes_awaited
from flstream.report.views import RoundRow
from flstream.telemetry.events import (
    SERVER,
    AnyEvent,
    EffectDone,
    Evaluated,
    FoldStarted,
    Metrics,
    ModelReady,
    ModelsCollected,
    ModelScored,
    NodesAwaited,
    ProcessReady,
    Progress,
    RoundFinished,
    RoundStarted,
    RunFinished,
    RunResumed,
    RunStarted,
    SiteFailed,
    SiteLog,
    SitePhaseChanged,
    SiteSuspended,
    SiteUpdate,
)

MOST_WORKERS = 32
"""Most workers that are shown, however large the terminal is."""

MOVING = ("downloading", "uploading")
WORKING = ("training", "evaluating", "submitting")
_ENDED = ("finished", "failed", "stopped")
_GONE = ("failed", "asked no more")
# Order of workers where not all are shown.
_URGENCY = ("failed", *WORKING, *MOVING, "starting", "ready", "asked no more", "idle")
_PACE_ROUNDS, _MOST_PAST = 8, 24
# Nobody could read activities in rounds that are over sooner.
_UNREADABLE_SECONDS = 0.5


@dataclass
class Activity:
    """Present work of a process that does the work of one site, or of several one by one.

    Attributes:
        worker: name of the process.
        state: starting, downloading, training, evaluating, submitting, ready, uploading, idle,
            failed or asked no more.
        since: time at which it entered this state, in seconds since the epoch.
        site: site that a shared worker is at, and its place among those of the task.
        down: bytes of the model that it was sent for the task.
        up: bytes of its update that were folded.
        metrics: metrics that the site last logged or sent.
    """

    worker: str
    state: str = "starting"
    since: float = 0.0
    site: str = ""
    down: int = 0
    up: int = 0
    metrics: Metrics = field(default_factory=dict)

    def enter(self, state: str, time: float) -> None:
        """Enter a state at a time in seconds since the epoch; entering it again has no effect."""
        if state != self.state:
            self.state, self.since = state, time


@dataclass
class Snapshot:
    """The whole picture of a run at this moment.

    Attributes:
        began: time at which the run began, in seconds since the epoch.
        phase: what the run as a whole does.
        start: event that the run began with.
        model: event of the initial model.
        round: number of the present round.
        ready: processes that have been ready.
        asked: number of sites that have the present task, or are to get it.
        answered: sites that answered it; ``failed`` are those that failed at it.
        answers: answers of sites to all tasks.
        folded: bytes of the model that the walk over the updates has done.
        down: bytes of models to the sites.
        up: bytes of updates to the server.
        workers: activity of each worker by name.
        failures: reasons of sites that failed last, the latest at the end.
        rounds: last completed rounds.
        scored: last evaluation.
    """

    began: float
    phase: str = "starting"
    start: RunStarted | None = None
    model: ModelReady | None = None
    round: int = 0
    ready: set[str] = field(default_factory=set)
    asked: int = 0
    answered: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    answers: int = 0
    folded: int = 0
    down: int = 0
    up: int = 0
    workers: dict[str, Activity] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    rounds: deque[RoundRow] = field(default_factory=lambda: deque(maxlen=_MOST_PAST))
    scored: Evaluated | None = None
    _cohort: set[str] = field(default_factory=set)
    _task: str = ""
    _over: int = 0
    _suspended: int = 0
    _settled: tuple[int, int] = (0, 0)
    _aggregator: str = ""
    _evaluations: list[Evaluated | ModelScored] = field(default_factory=list)
    _begins: deque[float] = field(default_factory=lambda: deque(maxlen=_PACE_ROUNDS + 1))

    @property
    def is_shared(self) -> bool:
        """Whether processes share the sites."""
        return self.start is not None and bool(self.start.workers)

    @property
    def model_bytes(self) -> int:
        """Size of the model; 0 until it is known."""
        return self.model.bytes if self.model is not None else 0

    @property
    def done(self) -> int:
        """Number of sites that have done the present task, whether or not that has come in."""
        done = max(len(self.answered), self._over)
        return min(done, max(self.asked - len(self.failed), 0))

    @property
    def downloading(self) -> list[Activity]:
        """Workers that are being sent the model, while no other has gone further."""
        works = self.workers.values()
        if self.is_shared or self.done or any(work.state in WORKING for work in works):
            return []
        return [work for work in works if work.state == "downloading"]

    @property
    def seconds_a_round(self) -> float | None:
        """Mean of the last rounds; None before the first one has ended."""
        # The first round includes warming up, so it counts only until there is another one.
        is_first = 2 < len(self._begins) <= _PACE_ROUNDS and self.round == len(self._begins)
        begins = list(self._begins)[is_first:]
        return (begins[-1] - begins[0]) / (len(begins) - 1) if len(begins) > 1 else None

    @property
    def is_quick(self) -> bool:
        """Whether rounds are over before anybody could read what goes on in them."""
        pace = self.seconds_a_round
        return pace is not None and pace < _UNREADABLE_SECONDS and self.phase not in _ENDED

    def seconds_left(self, now: float) -> float | None:
        """Predict the seconds until the end of the job; None if that is not known yet."""
        pace = self.seconds_a_round
        if pace is None or self.start is None or self.phase in _ENDED:
            return None
        rounds = self.start.rounds - self.round
        return max(pace - (now - self._begins[-1]), 0.0) + rounds * pace

    def shown_workers(self, most: int) -> list[Activity]:
        """Return the activity of some workers: the failed first, then those at work longest.

        Args:
            most: number of workers; where all fit, they are in their order.
        """
        most = min(most, MOST_WORKERS)
        if len(self.workers) <= most:
            return sorted(self.workers.values(), key=lambda work: work.state not in _GONE)
        return heapq.nsmallest(most, self.workers.values(), key=_urgency)

    def apply(self, event: AnyEvent) -> None:
        """Count one event, in the order in which they happened."""
        match event:
            case Progress():
                self._progress(event)
            case SitePhaseChanged():
                self._change(event)
            case SiteUpdate():
                self._answer(event.site)
                worker = self.workers.get(event.site)
                if worker is None or worker.state != "asked no more":
                    self.failures.pop(event.site, None)
                if worker is not None:
                    worker.metrics = event.metrics
                elif self.is_shared:  # its update was fetched before this event
                    self.up += self.model_bytes
            case SiteLog() if event.text is None and event.site in self.workers:
                self.workers[event.site].metrics = {event.key: event.value}
            case RoundStarted():
                self._begin_training(event)
            case SiteFailed():
                where = f"round {event.round}: " if event.round else ""
                self._fail(event.site, "failed", f"{where}{event.reason}", event.time)
            case SiteSuspended():
                self._suspended += 1
                reason = self.failures.get(event.site, "it kept failing")
                self._fail(event.site, "asked no more", reason, event.time)
            case RoundFinished():
                self._finish_round(event)
            case Evaluated():
                self.scored = event
                self._evaluations.append(event)
                if not event.received:
                    self._end_task("round is over", event.time, event.down.bytes)
            case ModelScored():
                self._evaluations.append(event)
                self._end_task("model is scored", event.time, event.down.bytes)
            case ModelsCollected():
                self._end_task("models are collected", event.time)
            case EffectDone():
                self._task = ""
            case FoldStarted():
                self._aggregator = f" at {event.site}"
            case RunStarted():
                self.start, self.phase = event, "preparing the model"
                for name in event.workers or event.sites:
                    self.workers[name] = Activity(name, since=event.time)
            case ModelReady():
                self.model, self.phase = event, "starting the sites"
            case ProcessReady() if event.process != SERVER:
                self.ready.add(event.process)
                if event.process in self.workers:
                    self.workers[event.process].enter("idle", event.time)
            case RunResumed():
                self.phase, self.round = "starting the sites", event.round or 0
            case RunFinished():
                self.phase = event.status
            case NodesAwaited():
                self.phase = ": ".join(filter(None, [nodes_awaited(event), event.command]))

    def _worker(self, name: str) -> Activity:
        return self.workers.setdefault(name, Activity(name))

    def _begin_training(self, event: RoundStarted) -> None:
        if event.round != self.round:
            self._begins.append(event.time)
        if event.round != self.round or self._task != "training":
            self._begin("training")
        # The round goes on with more sites, or with some of them once more.
        self.answered.difference_update(event.sites)
        self.failed.difference_update(event.sites)
        self._cohort.update(event.sites)
        self.round, self.asked, self.phase = event.round, len(self._cohort), "training"

    def _begin(self, task: str) -> None:
        self._task = self.phase = task
        self._over = self.folded = 0
        self._cohort, self.answered, self.failed = set(), set(), set()

    def _begin_work(self, task: str) -> None:
        """Begin a task of all sites, unless one is under way."""
        if not self._task:
            self._begin(task)
            self.asked = (self.start.clients if self.start else 0) - self._suspended

    def _change(self, event: SitePhaseChanged) -> None:
        if event.state in ("downloading", "submitting"):
            self._begin_work("evaluating" if event.state == "downloading" else "submitting")
        if event.state == "ready":
            self._answer(event.site)
        if self.is_shared:
            return
        worker = self._worker(event.site)
        worker.enter(event.state, event.time)
        if event.state == "downloading":
            worker.down = worker.up = 0
        elif event.state in WORKING:
            # The last report of progress may be a moment old.
            self._move_down(worker, self.model_bytes)

    def _answer(self, site: str) -> None:
        self.answers += site not in self.answered
        self.answered.add(site)

    def _fail(self, site: str, state: str, reason: str, time: float) -> None:
        self.answered.discard(site)
        self.failed.add(site)
        self.failures.pop(site, None)
        self.failures[site] = reason
        if not self.is_shared:
            self._worker(site).enter(state, time)

    def _progress(self, event: Progress) -> None:
        if event.folded:
            self._fold(event)
        elif self.is_shared:
            self._share(event)
        else:
            for name, count in event.down.items():
                self._move_down(self._worker(name), count)

    def _share(self, event: Progress) -> None:
        for task in ("evaluating", "submitting"):
            if any(work.state == task for work in event.workers.values()):
                self._begin_work(task)
        self.down = max(self.down, self._settled[0] + event.sent)
        self._over = event.answered + sum(work.over for work in event.workers.values())
        for name, worker in self.workers.items():
            work = event.workers.get(name)
            if work is None:
                worker.enter("idle" if name in self.ready else "starting", event.time)
            else:
                place = f", {work.over + 1:,} of {work.sites:,}" if work.sites > 1 else ""
                worker.state, worker.since = work.state, work.since
                worker.site, worker.down = f"{work.site}{place}", work.down

    def _fold(self, event: Progress) -> None:
        # Where updates are added to a sum as they come, the others are still at work.
        if self.is_shared and len(self.answered) + len(self.failed) < self.asked:
            return
        is_done = event.folded >= event.size
        self.phase = "writing the checkpoint" if is_done else f"folding{self._aggregator}"
        self.folded = event.folded
        for name, count in event.up.items():
            if not self.is_shared:
                worker = self._worker(name)
                worker.enter("ready" if is_done else "uploading", event.time)
                self.up += max(count - worker.up, 0)
                worker.up = count

    def _move_down(self, worker: Activity, count: int) -> None:
        self.down += max(count - worker.down, 0)
        worker.down = max(worker.down, count)

    def _finish_round(self, event: RoundFinished) -> None:
        scores = [e.metrics for e in self._evaluations if isinstance(e, Evaluated)]
        metrics = flat_metrics({**(scores[-1] if scores else {}), "train": event.metrics})
        evaluate = sum(e.seconds for e in self._evaluations)
        phases = (*event.phases, evaluate)
        self.rounds.append(RoundRow(event.round, metrics, phases, event.privacy, event.aggregator))
        self._evaluations, self._aggregator = [], ""
        self._end_task("round is over", event.time, event.down.bytes, event.up.bytes)

    def _end_task(self, phase: str, time: float, down: int = 0, up: int = 0) -> None:
        """End a task, whose exact numbers of bytes are known now."""
        self._task, self.phase, self._over = "", phase, 0
        self._settled = self.down, self.up = self._settled[0] + down, self._settled[1] + up
        for worker in self.workers.values():
            if worker.state not in (*_GONE, "idle", "starting"):
                worker.enter("idle", time)
                worker.site = ""


def _urgency(work: Activity) -> tuple[int, float]:
    known = work.state in _URGENCY
    return _URGENCY.index(work.state) if known else len(_URGENCY), work.since
