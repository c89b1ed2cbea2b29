"""The records of a run's sites: updates, weights, failures, and the seconds of their work."""

from __future__ import annotations

from dataclasses import dataclass

from flstream.telemetry.events import (
    AnyEvent,
    RoundFinished,
    RoundStarted,
    RunResumed,
    SiteFailed,
    SitePhaseChanged,
    SiteSuspended,
)


@dataclass
class SiteRecord:
    """One site over the whole run.

    Attributes:
        name: Name of the site.
        updates: Rounds whose model its update is part of.
        weight: Sum of its weights in them.
        downloads: Seconds of its downloads of models to train, if it has a process of its own.
        trains: Seconds of its training, in all, if it has a process of its own.
        slowest: Seconds of its slowest training.
        failures: Rounds in which it had no part.
        is_suspended: Whether it is asked no more.
    """

    name: str
    updates: int = 0
    weight: float = 0.0
    downloads: float = 0.0
    trains: float = 0.0
    slowest: float = 0.0
    failures: int = 0
    is_suspended: bool = False


class SiteRecords:
    """Records of sites, added up from the events that count.

    Attributes:
        by_name: The records of all sites that were asked to do anything.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, SiteRecord] = {}
        # Of each site that works, its phase and since when; only a site's own process reports it.
        self._phases: dict[str, tuple[str, float]] = {}
        self._round: int | None = None

    def apply(self, event: AnyEvent) -> None:
        """Add one event, in order."""
        match event:
            case RunResumed():
                self._phases.clear()
            case RoundStarted():
                if event.round != self._round:
                    self._phases.clear()
                for site in event.sites:
                    self._phases.pop(site, None)
                self._round = event.round
            case SitePhaseChanged():
                self._change_phase(event)
            case SiteFailed():
                self._phases.pop(event.site, None)
                self._record(event.site).failures += 1
            case SiteSuspended():
                self._record(event.site).is_suspended = True
            case RoundFinished():
                for site, weight in event.weights.items():
                    record = self._record(site)
                    record.updates, record.weight = record.updates + 1, record.weight + weight

    def _record(self, site: str) -> SiteRecord:
        return self.by_name.setdefault(site, SiteRecord(site))

    def _change_phase(self, event: SitePhaseChanged) -> None:
        phase, since = self._phases.get(event.site, ("", 0.0))
        self._phases[event.site] = event.state, event.time
        record, seconds = self._record(event.site), max(event.time - since, 0.0)
        if (phase, event.state) == ("downloading", "training"):
            record.downloads += seconds
        elif phase == "training":
            record.trains += seconds
            record.slowest = max(record.slowest, seconds)
