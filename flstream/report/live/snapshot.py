"""The picture of a run that is going on. It knows no terminal.

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
_TASKS = {"downloading": "evaluating", "submitting": "submitting"}
_ENDED = ("finished", "failed", "stopped")
_GONE = ("failed", "asked no more")
# Order of workers where not all are shown.
_URGENCY = ("failed", *WORKING, *MOVING, "starting", "ready", "asked no more", "idle")
_RATE_SECONDS, _LEAST_SECONDS, _PACE_ROUNDS = 2.0, 0.5, 8
_MOST_PAST, _MOST_MOVED = 24, 100_000
# Nobody could read activities in rounds that are over sooner.
_UNREADABLE_SECONDS = 0.5


class Rate:
    """Amount in all, and per second over the last two seconds."""

    def __init__(self) -> None:
        self._moved: deque[tuple[float, int]] = deque(maxlen=_MOST_MOVED)
        self._settled = 0
        self.total = 0

    def add(self, time: float, count: int) -> None:
        """Add an amount that arrived at a time in seconds since the epoch."""
        if count > 0:
            self.total += count
            self._moved.append((time, count))

    def reach(self, time: float, amount: int) -> None:
        """Raise the amount of the present task."""
        self.add(time, self._settled + amount - self.total)

    def settle(self, time: float, amount: int) -> None:
        """Correct the total by the exact amount of a task that has ended."""
        self.reach(time, amount)
        self._settled += amount
        self.total = self._settled

    def per_second(self, now: float) -> float:
        """Return the rate over the seconds before ``now``."""
        while self._moved and self._moved[0][0] < now - _RATE_SECONDS:
            self._moved.popleft()
        since = self._moved[0][0] if self._moved else now
        seconds = min(max(now - since, _LEAST_SECONDS), _RATE_SECONDS)
        return sum(count for _, count in self._moved) / seconds


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
    """The whole picture of a run at this moment, kept by counting its events.

    Attributes:
        began: time at which the run began, in seconds since the epoch.
        phase: what the run as a whole does.
        start: event that the run began with.
        model: event of the initial model.
        started: processes that have been ready.
        asked: sites that have the present task, or are to get it.
        failed: sites that failed at it.
        folded: bytes of the model that the walk over the updates has done.
        down: bytes of models to the sites.
        up: bytes of updates to the server.
        answers: answers of sites.
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
    started: set[str] = field(default_factory=set)
    asked: int = 0
    failed: set[str] = field(default_factory=set)
    folded: int = 0
    down: Rate = field(default_factory=Rate)
    up: Rate = field(default_factory=Rate)
    answers: Rate = field(default_factory=Rate)
    workers: dict[str, Activity] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    rounds: deque[RoundRow] = field(default_factory=lambda: deque(maxlen=_MOST_PAST))
    scored: Evaluated | None = None
    _asked: set[str] = field(default_factory=set)
    _answered: set[str] = field(default_factory=set)
    _task: str = ""
    _worker_done: int = 0
    _aggregator: str = ""
    _suspended: int = 0
    _scores: dict[int, Metrics] = field(default_factory=dict)
    _evaluate_seconds: float = 0.0
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
        done = max(len(self._answered), self._worker_done)
        return min(done, max(self.asked - len(self.failed), 0))

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
        each = self.seconds_a_round
        return each is not None and each < _UNREADABLE_SECONDS and self.phase not in _ENDED

    def seconds_left(self, now: float) -> float | None:
        """Predict the seconds until the end of the job; None if that is not known yet."""
        each = self.seconds_a_round
        if each is None or self.start is None or self.phase in _ENDED:
            return None
        rounds = self.start.rounds - self.round
        return max(each - (now - self._begins[-1]), 0.0) + rounds * each

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
                self._answer(event.site, event.time)
                if self._state_of(event.site) != "asked no more":
                    self.failures.pop(event.site, None)
                if event.site in self.workers:
                    self.workers[event.site].metrics = event.metrics
                elif self.is_shared:  # its update was fetched before this event
                    self.up.add(event.time, self.model_bytes)
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
                self._scores[event.round] = event.metrics
                if not event.received:
                    self._evaluate_seconds += event.seconds
                    self._end_task("round is over", event.time, event.down.bytes)
            case ModelScored():
                self._evaluate_seconds += event.seconds
                self._end_task("model is scored", event.time, event.down.bytes)
            case ModelsCollected():
                self._end_task("models are collected", event.time)
            case EffectDone():
                self._task = ""
            case FoldStarted():
                self._aggregator = event.site
            case RunStarted():
                self._start(event)
            case ModelReady():
                self.model, self.phase = event, "starting the sites"
            case ProcessReady() if event.process != SERVER:
                self.started.add(event.process)
                if event.process in self.workers:
                    self.workers[event.process].enter("idle", event.time)
            case RunResumed():
                self.phase, self.round = "starting the sites", event.round or 0
            case RunFinished():
                self.phase = event.status
            case NodesAwaited():
                self.phase = ": ".join(filter(None, [nodes_awaited(event), event.command]))

    def _state_of(self, worker: str) -> str:
        return self.workers[worker].state if worker in self.workers else ""

    def _worker(self, name: str) -> Activity:
        return self.workers.setdefault(name, Activity(name))

    def _start(self, event: RunStarted) -> None:
        names = event.workers or event.sites
        self.workers = {name: Activity(name, since=event.time) for name in names}
        self.start, self.phase = event, "preparing the model"

    def _begin_training(self, event: RoundStarted) -> None:
        if event.round != self.round:
            self._begins.append(event.time)
        if event.round != self.round or self._task != "training":
            self._begin("training")
        # The round goes on with more sites, or with some of them once more.
        self._answered.difference_update(event.sites)
        self.failed.difference_update(event.sites)
        self._asked.update(event.sites)
        self.round, self.asked, self.phase = event.round, len(self._asked), "training"
        if self.is_shared:
            self._rest(event.time)

    def _begin(self, task: str) -> None:
        self._task = self.phase = task
        self._worker_done = self.folded = 0
        self._asked, self._answered, self.failed = set(), set(), set()

    def _begin_work(self, task: str) -> None:
        """Begin a task of all sites, unless one is under way."""
        if not self._task:
            self._begin(task)
            self.asked = (self.start.clients if self.start else 0) - self._suspended

    def _change(self, event: SitePhaseChanged) -> None:
        if event.state in ("downloading", "submitting"):
            self._begin_work(_TASKS[event.state])
        if event.state == "ready":
            self._answer(event.site, event.time)
        if self.is_shared:
            return
        worker = self._worker(event.site)
        worker.enter(event.state, event.time)
        if event.state == "downloading":
            worker.down = worker.up = 0
        elif event.state in WORKING:
            # The last report of progress may be a moment old.
            self._move_down(worker, self.model_bytes, event.time)

    def _answer(self, site: str, time: float) -> None:
        if site not in self._answered:
            self._answered.add(site)
            self.answers.add(time, 1)

    def _fail(self, site: str, state: str, reason: str, time: float) -> None:
        self._answered.discard(site)
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
                self._move_down(self._worker(name), count, event.time)

    def _share(self, event: Progress) -> None:
        for task in ("evaluating", "submitting"):
            if any(work.state == task for work in event.workers.values()):
                self._begin_work(task)
        self.down.reach(event.time, event.sent)
        self._worker_done = event.answered + sum(work.over for work in event.workers.values())
        for name, worker in self.workers.items():
            work = event.workers.get(name)
            if work is None:
                worker.enter("idle" if name in self.started else "starting", event.time)
            else:
                place = f", {work.over + 1:,} of {work.sites:,}" if work.sites > 1 else ""
                worker.state, worker.since = work.state, work.since
                worker.site, worker.down = f"{work.site}{place}", work.down

    def _fold(self, event: Progress) -> None:
        # Where updates are added to a sum as they come, the others are still at work.
        if self.is_shared and len(self._answered) + len(self.failed) < self.asked:
            return
        is_done = event.folded >= event.size
        where = f" at {self._aggregator}" if self._aggregator else ""
        self.phase = "writing the checkpoint" if is_done else f"folding{where}"
        self.folded = event.folded
        for name, count in event.up.items():
            if not self.is_shared:
                worker = self._worker(name)
                worker.enter("ready" if is_done else "uploading", event.time)
                self.up.add(event.time, max(count - worker.up, 0))
                worker.up = count

    def _move_down(self, worker: Activity, count: int, time: float) -> None:
        self.down.add(time, max(count - worker.down, 0))
        worker.down = max(worker.down, count)

    def _finish_round(self, event: RoundFinished) -> None:
        scores = self._scores.pop(event.round, {})
        metrics = flat_metrics({**scores, "train": event.metrics})
        phases = (*event.phases, self._evaluate_seconds)
        row = RoundRow(event.round, metrics, phases, event.privacy, event.aggregator)
        self.rounds.append(row)
        self._evaluate_seconds, self._aggregator = 0.0, ""
        self._end_task("round is over", event.time, event.down.bytes, event.up.bytes)

    def _end_task(self, phase: str, time: float, down: int = 0, up: int = 0) -> None:
        self._task, self.phase = "", phase
        self.down.settle(time, down)
        self.up.settle(time, up)
        self._rest(time)

    def _rest(self, time: float) -> None:
        for worker in self.workers.values():
            if worker.state not in (*_GONE, "idle", "starting"):
                worker.enter("idle", time)
                worker.site = ""


def _urgency(work: Activity) -> tuple[int, float]:
    known = work.state in _URGENCY
    return _URGENCY.index(work.state) if known else len(_URGENCY), work.since
