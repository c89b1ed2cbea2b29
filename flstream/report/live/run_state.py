"""A run in its live view: the server's last snapshot, beside the run's history.

It knows no terminal.
"""

from __future__ import annotations

from collections import deque

from flstream.runs.history import History
from flstream.telemetry import events

_ENDED = ("finished", "failed", "stopped")
_PACE_ROUNDS, _MOST_FAILURES = 8, 32
_UNREADABLE_SECONDS = 0.5  # of a round: nobody could read what goes on in a quicker one


class LiveRun:
    """State of a run for its live view; an event's cost does not grow with sites."""

    def __init__(self, began: float) -> None:
        self.began, self.phase, self.round = began, "starting", 0
        self.history = History()
        self.now = events.Snapshot()  # the last one
        self.names: dict[str, None] = {}  # of the workers
        self.ready: set[str] = set()  # workers that have finished their imports
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
        match event:
            case events.Snapshot():
                self.now, self.phase = event, event.phase
            case events.SiteLog() if event.text is None and event.site in self.names:
                self.metrics[event.site] = {event.key: event.value}
            case events.SiteUpdate():
                self.failures.pop(event.site, None)
                if event.site in self.names:
                    self.metrics[event.site] = event.metrics
            case events.SiteFailed():
                self._fail(event.site, f"round {event.round}: " * bool(event.round) + event.reason)
            case events.SiteSuspended():
                reason = self.failures.get(event.site, "it kept failing")
                self._fail(event.site, f"asked no more: {reason}")
            case events.RoundStarted() if event.round != self.round:
                self._begin_round(event)
            case events.RoundFinished():
                self.phase = "round is over"
            case events.RunStarted():
                self.phase = "preparing the model"
                self.names = dict.fromkeys(event.workers or event.sites)
            case events.ModelReady():
                self.phase = "starting the sites"
            case events.ProcessReady() if event.process in (*self.names, events.EVALUATOR):
                self.names[event.process] = None
                self.ready.add(event.process)
            case events.RunResumed():
                self.phase, self.round = "starting the sites", event.round or 0
            case events.RunFinished():
                self.phase = event.status
            case events.NodesAwaited():
                self.phase = "waiting for nodes"

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
