"""A run in its live view: the server's last snapshot, beside the run's history.

It knows no terminal.
"""

from __future__ import annotations

from collections import deque

from flstream.report.text import counted
from flstream.runs.history import History
from flstream.telemetry import events
from flstream.text import brief_names

_AWAITS_NODES = "waiting for nodes"
_ENDED = ("finished", "failed", "stopped")
_PACE_ROUNDS, _MOST_FAILURES = 8, 32
_UNREADABLE_SECONDS = 0.5  # of a round: nobody could read what goes on in a quicker one


class RunStart:
    """Start of a run until its first task, and what that waits for."""

    def __init__(self) -> None:
        self.is_over = False
        self.names: dict[str, None] = {}  # of the workers
        self.ready: set[str] = set()  # workers that have finished their imports
        self._building = ""  # the model or the base that a process builds
        self._awaits_nodes = False

    def apply(self, event: events.AnyEvent) -> None:
        """Apply an event, in the order of events."""
        match event:
            case events.RunStarted():
                self.names.update(dict.fromkeys(event.processes))
                self._building = self._building.removeprefix("base")
            case events.ProcessStarted(process=events.EVALUATOR):
                self.names[events.EVALUATOR] = None
            case events.ProcessStarted(process="base-builder" | "model-builder" as builder):
                self._building = "base" if builder == "base-builder" else "initial model"
            case events.BaseReady() | events.ModelReady():
                self._building = ""
            case events.NodesAwaited() | events.NodeJoined():
                self._awaits_nodes = isinstance(event, events.NodesAwaited)
            case events.ProcessReady() if event.process in self.names:
                self.ready.add(event.process)
            case events.RoundStarted() | events.Snapshot() | events.RunFinished():
                self.is_over = True

    @property
    def phase(self) -> str:
        """Phase of the run, with what it waits for."""
        if self._awaits_nodes:
            return _AWAITS_NODES
        if self._building == "base":
            return "starting: building the base"
        if not self.names:
            return "starting: importing the libraries that all processes share"
        # A copy, since another thread may add a name.
        if late := [name for name in list(self.names) if name not in self.ready]:
            ready = f"{len(self.ready):,} of {counted(len(self.names), 'process')} ready"
            return f"starting: {ready}; importing: {brief_names(late, 3)}"
        return f"starting: building the {self._building}" if self._building else "starting"


class LiveRun:
    """State of a run for its live view; an event's cost does not grow with sites."""

    def __init__(self, began: float) -> None:
        self._starting = RunStart()
        self.began, self.phase, self.round = began, self._starting.phase, 0
        self.history = History()
        self.now = events.Snapshot()  # the last one
        self.names, self.ready = self._starting.names, self._starting.ready  # of the workers
        self.metrics: dict[str, events.Metrics] = {}  # that a worker logged or sent last
        self.failures: dict[str, str] = {}  # reasons, the latest at the end
        self._begins: deque[float] = deque(maxlen=_PACE_ROUNDS + 1)

    @property
    def start(self) -> events.RunStarted | None:
        """Event of the run's start; None before it."""
        return self.history.facts if self.history.facts.job else None

    @property
    def seconds_a_round(self) -> float | None:
        """Mean seconds of the last rounds; None before the first one has ended."""
        count = len(self._begins) - 1
        return (self._begins[-1] - self._begins[0]) / count if count > 0 else None

    @property
    def is_quick(self) -> bool:
        """Whether rounds end before anybody can read what happens in them."""
        pace = self.seconds_a_round
        return pace is not None and pace < _UNREADABLE_SECONDS and self.phase not in _ENDED

    def seconds_left(self, now: float) -> float | None:
        """Return the predicted seconds until the job's end; None while unknown."""
        pace = self.seconds_a_round
        if pace is None or self.start is None or self.phase in _ENDED:
            return None
        return max(pace - (now - self._begins[-1]), 0.0) + (self.start.rounds - self.round) * pace

    def apply(self, event: events.AnyEvent) -> None:
        """Apply an event, in the order of events."""
        self.history.apply(event)
        self._starting.apply(event)
        if not self._starting.is_over:
            self.phase = self._starting.phase
        match event:
            case events.Snapshot():
                self.now, self.phase = event, event.phase
            case events.SiteLog() if event.text is None and event.site in self.names:
                self.metrics[event.site] = {event.key: event.value}
            case events.SiteUpdate():
                self.failures.pop(event.site, None)
                if event.site in self.names:
                    self.metrics[event.site] = event.metrics
            case events.SiteFailed(late=False):
                self._fail(event.site, f"round {event.round}: " * bool(event.round) + event.reason)
            case events.SiteSuspended():
                reason = self.failures.get(event.site, "it kept failing")
                self._fail(event.site, f"asked no more: {reason}")
            case events.RoundStarted() if event.round != self.round:
                self._begin_round(event)
            case events.RoundFinished():
                self.phase = "round is over"
            case events.RunResumed():
                self.round = event.round or 0
            case events.RunFinished():
                self.phase = event.status
            case events.NodesAwaited():
                self.phase = _AWAITS_NODES

    def _begin_round(self, event: events.RoundStarted) -> None:
        self.round, self.phase = event.round, "training"
        self._begins.append(event.time)
        if event.round == len(self._begins) == 3:
            self._begins.popleft()  # much is loaded in the first round

    def _fail(self, site: str, reason: str) -> None:
        self.failures.pop(site, None)
        self.failures[site] = reason
        if len(self.failures) > _MOST_FAILURES:
            del self.failures[next(iter(self.failures))]
