"""Records of the live view: progress of a site, its last failure, and memory of processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flstream.telemetry.events import Metrics
from flstream.telemetry.memory import MemorySampler

MOVING = frozenset({"downloading", "uploading"})
"""States of a site during a transfer."""
WORKING = frozenset({"training", "evaluating", "submitting"})
"""States of a site while its training code runs."""
GONE = frozenset({"failed", "benched"})
"""States of a site that has no part in the current round."""


@dataclass
class SiteProgress:
    """Progress of a site with a process of its own.

    Attributes:
        name: name of the site.
        state: starting, downloading, training, evaluating, submitting, ready, uploading, idle,
            failed or benched.
        since: time at which the site entered this state, in seconds since the epoch.
        down: bytes of the model sent to the site in this phase.
        up: bytes of the site's update that were folded in this round.
        weight: weight of the site's last update; None before the first one.
        latest_metrics: metrics that the site last logged or sent with its update.
    """

    name: str
    state: str = "starting"
    since: float = 0.0
    down: int = 0
    up: int = 0
    weight: float | None = None
    latest_metrics: Metrics = field(default_factory=dict)

    def enter(self, state: str, time: float) -> None:
        """Enter a state at a time in seconds since the epoch; re-entering it has no effect."""
        if state != self.state:
            self.state, self.since = state, time

    @property
    def moved(self) -> int:
        """Bytes moved by the current transfer."""
        return self.up if self.state == "uploading" else self.down


@dataclass
class RecentFailure:
    """The last failure of a site.

    Attributes:
        round: number of the round; 0 before the first one.
        reason: error message.
        benched: whether the site gets no more tasks.
    """

    round: int
    reason: str
    benched: bool = False


@dataclass(frozen=True)
class Memory:
    """Memory of a run's processes, in bytes.

    Attributes:
        rss: current RSS of each process, by name.
        peak_rss: peak RSS of each process so far, by name.
        peak_total: peak sum over all processes so far, with shared pages counted once.
        nodes: node of each process that is not on this machine, by name of the process.
    """

    rss: Mapping[str, int] = field(default_factory=dict)
    peak_rss: Mapping[str, int] = field(default_factory=dict)
    peak_total: int = 0
    nodes: Mapping[str, str] = field(default_factory=dict)


def memory_now(sampler: MemorySampler) -> Memory:
    """Return the memory of the processes that a sampler watches."""
    peaks = sampler.peaks()
    return Memory(
        sampler.current_rss(),
        {name: memory.peak_rss for name, memory in peaks.items()},
        sampler.peak_total_pss,
        {name: memory.node for name, memory in peaks.items() if isinstance(memory.node, str)},
    )
