"""What is known of a run while it goes on, built from its events. It knows no terminal.

Taking an event costs the same with four sites and with a million: what is kept of a round is what
its events have named, and no event goes over all sites.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec import structs

from flstream.report.live.rates import Pace, Throughput
from flstream.report.live.site_state import GONE, WORKING, RecentFailure, SiteProgress
from flstream.report.text import counted, nodes_awaited
from flstream.runs.history import History
from flstream.runs.round_record import RoundRecord
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
    NodeJoined,
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
    WorkerActivity,
)

# Nobody could read what goes on in rounds that are over sooner.
_UNREADABLE_SECONDS = 0.5


_Task = Literal["training", "evaluating", "submitting"]


@dataclass
class RunState:
    """The run.

    Attributes:
        phase: what the run as a whole does.
        awaited: nodes that are waited for, or were.
        aggregator: site that folds the round's updates; empty for the server.
        began: when it began, in seconds since the epoch.
        model_bytes: size of the model, 0 until it is known.
        count: how many sites the job has.
        sites: those with a process of their own, in the order of their numbers.
        workers: what is done by processes that share the sites; None for one that waits.
        started: which of the sites' processes have been ready.
        failures: of each site that failed last, the latest at the end.
        benched: how many sites are asked no more.
        asked: how many sites have the task under way.
        failed: which of them have failed at it.
        task_began: when they were given it, in seconds since the epoch.
        folded: bytes of the model that the walk over the updates has done.
        fold_began: when that began.
        totals: What rounds and evaluations of this sitting add up to.
        metrics: of the model of round ``scored``.
        down: bytes of the model on their way to the sites.
        up: bytes of updates on their way to the server.
        tasks: sites that answered.
        pace: of the rounds.
        has_activity: whether it is known what workers do in the task under way.
    """

    began: float = 0.0
    job: str = ""
    rounds: int = 0
    round: int = 0
    phase: str = "starting"
    awaited: NodesAwaited | None = None
    aggregator: str = ""
    mode: str = ""
    chunk_size: int = 0
    model_bytes: int = 0
    tensors: int = 0
    count: int = 0
    sites: dict[str, SiteProgress] = field(default_factory=dict)
    workers: dict[str, WorkerActivity | None] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    failures: dict[str, RecentFailure] = field(default_factory=dict)
    benched: int = 0
    asked: int = 0
    failed: set[str] = field(default_factory=set)
    task_began: float = 0.0
    folded: int = 0
    fold_began: float = 0.0
    totals: History = field(default_factory=History)
    metrics: Metrics = field(default_factory=dict)
    scored: int | None = None
    down: Throughput = field(default_factory=Throughput)
    up: Throughput = field(default_factory=Throughput)
    tasks: Throughput = field(default_factory=Throughput)
    pace: Pace = field(default_factory=Pace)
    has_activity: bool = False
    _settled_down: int = 0
    _settled_up: int = 0
    _answered: set[str] = field(default_factory=set)
    _asked: set[str] = field(default_factory=set)
    _task: str = ""
    _activity_over: int = 0
    _is_over: bool = True
    _nodes: int = 0

    @property
    def history(self) -> Sequence[RoundRecord]:
        """Rounds of this sitting that are over, in order."""
        return self.totals.rounds

    @property
    def is_shared(self) -> bool:
        """Whether processes share the sites."""
        return bool(self.workers)

    @property
    def is_quick(self) -> bool:
        """Whether rounds are over before anybody could read what goes on in them."""
        each = self.pace.seconds_a_round
        is_over = self.phase in ("finished", "failed", "stopped")
        return each is not None and each < _UNREADABLE_SECONDS and not is_over

    @property
    def over(self) -> int:
        """How many sites have done the task under way, whether or not that has come in."""
        over = max(len(self._answered), self._activity_over)
        return min(over, max(self.asked - len(self.failed), 0))

    def apply(self, event: AnyEvent) -> None:
        """Take one event, in the order in which they happened."""
        match event:
            case SiteUpdate():
                self._update(event)
            case SitePhaseChanged():
                self._change(event)
            case Progress():
                self._progress(event)
            case SiteLog():
                site = self.sites.get(event.site)
                if site is not None and event.text is None:
                    site.latest_metrics = {event.key: event.value}
            case NodesAwaited():
                self.awaited, self.phase = event, nodes_awaited(event)
            case NodeJoined():
                self._nodes += 1
                if not self.job and self.awaited is not None:
                    self.phase = f"{self._nodes} of {counted(self.awaited.nodes, 'node')} joined"
            case SiteFailed():
                self._fail(event)
            case RunStarted():
                self._start(event)
            case ModelReady():
                self.model_bytes, self.tensors = event.bytes, event.tensors
                self.phase = "starting the sites"
            case ProcessReady():
                if event.process != SERVER:
                    self.started.add(event.process)
                site = self.sites.get(event.process)
                if site is not None and site.state == "starting":
                    site.enter("idle", event.time)
            case RoundStarted():
                self._begin_training(event)
            case FoldStarted():
                self.aggregator = event.site
            case RunResumed():
                self._go_back(event)
            case EffectDone():
                self._is_over = True
            case RoundFinished():
                self._finish_round(event)
            case Evaluated():
                self._evaluated(event)
            case ModelScored():
                self._end_task(event.time, event.down.bytes, "model is scored")
                self.totals.apply(event)
            case ModelsCollected():
                self._end_task(event.time, 0, "models are collected")
            case SiteSuspended():
                self._bench(event)
            case RunFinished():
                self.phase = event.status

    def _start(self, event: RunStarted) -> None:
        self.job, self.rounds, self.phase = event.job, event.rounds, "preparing the model"
        self.mode, self.chunk_size = event.mode, event.chunk_size
        self.count = event.clients
        if event.workers:
            self.workers = dict.fromkeys(event.workers)
        else:
            self.sites = {name: SiteProgress(name, since=event.time) for name in event.sites}

    def _go_back(self, event: RunResumed) -> None:
        """The run goes on from an earlier model; what came after it does not count."""
        counted = [each for each in self.totals.rounds if each.number <= (event.round or 0)]
        self.totals = History()
        self.totals.rounds += counted
        self.metrics, self.scored, self.round = {}, None, event.round or 0
        self.phase = "starting the sites"

    def _begin(self, task: _Task, time: float) -> None:
        """A task begins."""
        self._task, self.task_began = task, time
        self._asked, self._answered, self.failed = set(), set(), set()
        self._rest_workers(task)

    def _rest_workers(self, phase: str) -> None:
        """Sites are asked, and no worker has begun."""
        self.phase = phase
        self._activity_over = self.folded = 0
        self.has_activity = False
        for name in self.workers:
            self.workers[name] = None

    def _begin_training(self, event: RoundStarted) -> None:
        if event.round != self.round:
            self.pace.begin_round(event.time)
        if event.round != self.round or self._task != "training":
            self._begin("training", event.time)
        else:
            # The round goes on with more sites, or with some of them once more.
            self._answered.difference_update(event.sites)
            self.failed.difference_update(event.sites)
            self._rest_workers("training")
        self.round, self._is_over = event.round, False
        self._asked.update(event.sites)
        self.asked = len(self._asked)

    def _begin_work(self, task: _Task, time: float) -> None:
        """All sites are asked, unless they were already, for something else than a training."""
        if self._is_over and self.phase != task:
            self._begin(task, time)
            self.asked = self.count - self.benched

    def _update(self, event: SiteUpdate) -> None:
        self._answer(event.site, event.time)
        failure = self.failures.get(event.site)
        if failure is not None and not failure.benched:
            del self.failures[event.site]
        site = self.sites.get(event.site)
        if site is not None:
            site.weight, site.latest_metrics = event.weight, event.metrics
        elif self.is_shared:
            # Its update was fetched before this was reported.
            self.up.add(event.time, self.model_bytes)

    def _answer(self, name: str, time: float) -> None:
        if name not in self._answered:
            self._answered.add(name)
            self.tasks.add(time, 1)

    def _change(self, event: SitePhaseChanged) -> None:
        if event.state == "downloading":
            self._begin_work("evaluating", event.time)
        if event.state == "submitting":
            self._begin_work("submitting", event.time)
        if event.state == "ready":
            self._answer(event.site, event.time)
        if self.is_shared:
            return
        site = self._site(event.site)
        site.enter(event.state, event.time)
        if event.state == "downloading":
            site.down = site.up = 0
        elif event.state in WORKING:
            # The last report of progress may be a moment old.
            self._move_down(site, self.model_bytes, event.time)

    def _progress(self, event: Progress) -> None:
        self.model_bytes = self.model_bytes or event.size
        if event.folded:
            self._fold(event)
        elif self.is_shared:
            self._share(event)
        else:
            for name, count in event.down.items():
                self._move_down(self._site(name), count, event.time)

    def _share(self, event: Progress) -> None:
        states = {work.state for work in event.workers.values()}
        tasks: tuple[_Task, ...] = ("evaluating", "submitting")
        for task in tasks:
            if task in states:
                self._begin_work(task, event.time)
        self.down.settle(event.time, self._settled_down + event.sent)
        self._activity_over = event.answered + sum(work.over for work in event.workers.values())
        self.has_activity = True
        for name in self.workers:
            self.workers[name] = event.workers.get(name)

    def _fold(self, event: Progress) -> None:
        # Where updates are added to a sum as they come, the others are still at work.
        if self.is_shared and len(self._answered) + len(self.failed) < self.asked:
            return
        if self.phase != "folding":
            self.fold_began = event.time
            for name in self.workers:
                self.workers[name] = None
        self.folded = event.folded
        is_done = event.folded >= event.size
        self.phase = "writing the checkpoint" if is_done else "folding"
        for name, count in event.up.items():
            site = self._site(name)
            site.enter("ready" if is_done else "uploading", event.time)
            self.up.add(event.time, max(count - site.up, 0))
            site.up = count

    def _finish_round(self, event: RoundFinished) -> None:
        self._is_over = True
        self._task, self.phase, self.aggregator = "", "round is over", ""
        self._settle(event.time, event.down.bytes, event.up.bytes)
        # Nobody shows its weights, of which there is one for each site.
        self.totals.apply(structs.replace(event, weights={}))
        self._rest(event.time)

    def _evaluated(self, event: Evaluated) -> None:
        self.metrics, self.scored = event.metrics, event.round
        event = structs.replace(event, sites={})  # nobody shows them
        if event.received:  # which was no task
            self.totals.apply(event)
            return
        self._end_task(event.time, event.down.bytes, "round is over")
        self.totals.apply(event)

    def _end_task(self, time: float, down: int, phase: str) -> None:
        """A task is over, of which nobody sends an update that is folded."""
        self._task, self.phase, self._is_over = "", phase, True
        self._settle(time, down, 0)
        self._rest(time)

    def _settle(self, time: float, down: int, up: int) -> None:
        """The server has told what a task's transfers were in the end."""
        self._settled_down += down
        self._settled_up += up
        self.down.settle(time, self._settled_down)
        self.up.settle(time, self._settled_up)

    def _fail(self, event: SiteFailed) -> None:
        self._answered.discard(event.site)
        self.failed.add(event.site)
        self.failures.pop(event.site, None)
        self.failures[event.site] = RecentFailure(event.round, event.reason)
        if not self.is_shared:
            self._site(event.site).enter("failed", event.time)

    def _bench(self, event: SiteSuspended) -> None:
        self.benched += 1
        failure = self.failures.setdefault(
            event.site, RecentFailure(event.round, "it kept failing")
        )
        failure.benched = True
        if not self.is_shared:
            self._site(event.site).enter("benched", event.time)

    def _site(self, name: str) -> SiteProgress:
        return self.sites.setdefault(name, SiteProgress(name))

    def _move_down(self, site: SiteProgress, count: int, time: float) -> None:
        self.down.add(time, max(count - site.down, 0))
        site.down = max(site.down, count)

    def _rest(self, time: float) -> None:
        # Those with a process of their own are few.
        for site in self.sites.values():
            if site.state not in GONE:
                site.enter("idle", time)
