"""What is known of one site, of why it failed, and of a round that is over."""

from __future__ import annotations

from dataclasses import dataclass, field

from flstream.telemetry.events import Metrics

MOVING = frozenset({"downloading", "uploading"})
"""States in which a transfer is under way."""
WORKING = frozenset({"training", "evaluating"})
"""States in which a script is at work."""
GONE = frozenset({"failed", "benched"})
"""States in which nothing is waited for."""


@dataclass
class SiteProgress:
    """A site with a process of its own.

    Attributes:
        state: starting, downloading, training, evaluating, ready, uploading, idle, failed or
            benched.
        since: when it came into this state, in seconds since the epoch.
        down: bytes of the model that it was sent in this phase.
        up: bytes of its update that were folded in this round.
        weight: of its last update.
        said: what it last logged or sent with its update.
    """

    name: str
    state: str = "starting"
    since: float = 0.0
    down: int = 0
    up: int = 0
    weight: float | None = None
    said: Metrics = field(default_factory=dict)

    def enter(self, state: str, time: float) -> None:
        """Go over to a state; staying in it does not restart its clock."""
        if state != self.state:
            self.state, self.since = state, time

    @property
    def moved(self) -> int:
        """Bytes moved of the transfer under way."""
        return self.up if self.state == "uploading" else self.down


@dataclass
class Failure:
    """Why a site had no part in a round, and whether it is asked no more."""

    round: int
    reason: str
    benched: bool = False


@dataclass
class PastRound:
    """A round that is over: its seconds, and what its sites and its model's evaluation said."""

    number: int
    download: float
    train: float
    upload_and_fold: float
    checkpoint: float
    trained: Metrics
    evaluate: float = 0.0
    scores: Metrics = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """All of it."""
        steps = (self.download, self.train, self.upload_and_fold, self.checkpoint, self.evaluate)
        return sum(steps)
