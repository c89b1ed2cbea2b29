"""What is known of a run while it goes on, built from its events. It knows no terminal."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from flstream.telemetry.events import (
    AnyEvent,
    Evaluated,
    Metrics,
    ModelReady,
    ProcessReady,
    Progress,
    RoundFinished,
    RoundStarted,
    RunFinished,
    RunStarted,
    SiteFailed,
    SiteState,
)

# Long enough to even out single requests, short enough to follow a change of pace.
_RATE_SECONDS = 2.0

MOVING = frozenset({"downloading", "uploading"})
"""States of a site in which a transfer is under way."""
WORKING = frozenset({"training", "evaluating"})
"""States of a site in which its script is at work."""


@dataclass
class SiteProgress:
    """One site.

    Attributes:
        state: starting, downloading, training, evaluating, ready, uploading, idle or failed.
        since: when it came into this state, in seconds since the epoch.
        down: bytes of the model that it was sent in this phase.
        up: bytes of its update that were folded in this round.
    """

    name: str
    state: str = "starting"
    since: float = 0.0
    down: int = 0
    up: int = 0

    def enter(self, state: str, time: float) -> None:
        """Go over to a state; staying in it does not restart its clock."""
        if state != self.state:
            self.state, self.since = state, time

    @property
    def moved(self) -> int:
        """Bytes moved of the transfer under way."""
        return self.up if self.state == "uploading" else self.down


class Throughput:
    """Bytes over the last moments."""

    def __init__(self) -> None:
        self._moved: deque[tuple[float, int]] = deque()
        self.total = 0

    def add(self, time: float, count: int) -> None:
        """Note that ``count`` bytes more had moved at ``time``."""
        self.total += count
        self._moved.append((time, count))
        self._forget(time)

    def per_second(self, now: float) -> float:
        """Bytes a second up to ``now``."""
        self._forget(now)
        return sum(count for _, count in self._moved) / _RATE_SECONDS

    def _forget(self, now: float) -> None:
        while self._moved and self._moved[0][0] < now - _RATE_SECONDS:
            self._moved.popleft()


@dataclass
class RunState:
    """The run.

    Attributes:
        phase: what the run as a whole does.
        began: when it began, in seconds since the epoch.
        model_bytes: size of the model, 0 until it is known.
        sites: in the order of their numbers.
        metrics: of the model of round ``scored``.
    """

    began: float = 0.0
    job: str = ""
    rounds: int = 0
    round: int = 0
    phase: str = "starting"
    mode: str = ""
    chunk_size: int = 0
    model_bytes: int = 0
    tensors: int = 0
    sites: dict[str, SiteProgress] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=dict)
    scored: int = 0
    down: Throughput = field(default_factory=Throughput)
    up: Throughput = field(default_factory=Throughput)
    _folded: bool = False

    def apply(self, event: AnyEvent) -> None:
        """Take one event, in the order in which they happened."""
        match event:
            case RunStarted():
                self.job, self.rounds, self.phase = event.job, event.rounds, "building the model"
                self.mode, self.chunk_size = event.mode, event.chunk_size
                for name in event.sites:
                    self._site(name)
            case ModelReady():
                self.model_bytes, self.tensors = event.bytes, event.tensors
            case ProcessReady():
                site = self.sites.get(event.process)
                if site is not None and site.state == "starting":
                    site.enter("idle", event.time)
            case RoundStarted():
                self.round, self.phase, self._folded = event.round, "training", False
            case SiteState():
                self._change(event)
            case SiteFailed():
                self._site(event.site).enter("failed", event.time)
            case Progress():
                self._progress(event)
            case RoundFinished():
                self._folded = True
                self._rest(event.time)
            case Evaluated():
                self.metrics, self.scored = event.metrics, event.round
                self._rest(event.time)
            case RunFinished():
                self.phase = event.status

    def _site(self, name: str) -> SiteProgress:
        return self.sites.setdefault(name, SiteProgress(name))

    def _change(self, event: SiteState) -> None:
        site = self._site(event.site)
        site.enter(event.state, event.time)
        if event.state == "downloading":
            site.down = site.up = 0
            self.phase = "evaluating" if self._folded else "training"
        elif event.state in WORKING:
            # The last report of progress may be a moment old.
            self._move_down(site, self.model_bytes, event.time)

    def _progress(self, event: Progress) -> None:
        for name, count in event.down.items():
            self._move_down(self._site(name), count, event.time)
        for name, count in event.up.items():
            site = self._site(name)
            self.phase = "folding"
            site.enter("uploading", event.time)
            self.up.add(event.time, max(count - site.up, 0))
            site.up = count

    def _move_down(self, site: SiteProgress, count: int, time: float) -> None:
        self.down.add(time, max(count - site.down, 0))
        site.down = max(site.down, count)

    def _rest(self, time: float) -> None:
        for site in self.sites.values():
            if site.state != "failed":
                site.enter("idle", time)
