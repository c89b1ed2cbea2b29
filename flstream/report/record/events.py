"""What the events of a run tell beside its summary: when its phases were, and how its sites did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from flstream.simulator.files.journal import Journal
from flstream.telemetry.event_log import WholeLines
from flstream.telemetry.events import (
    AnyEvent,
    Evaluated,
    ProcessEnded,
    ProcessReady,
    RoundFinished,
    RoundStarted,
    RunFinished,
    RunResumed,
    RunStarted,
    SiteBenched,
    SiteFailed,
    SiteState,
    decode_event,
)

PHASES = ("download", "train", "upload and fold", "checkpoint", "evaluate")
"""What a round consists of, in order."""

# A round's event has an entry a site, of which there may be a million.
_MOST_LINE_BYTES = 64 << 20
# How a line of the only kind begins that makes others void.
_RESUMED = b'{"kind":"run_resumed"'


class Span(NamedTuple):
    """A phase of a round: its begin and end in seconds since the epoch."""

    phase: str
    begin: float
    end: float


@dataclass
class SiteRecord:
    """One site over the whole run.

    Attributes:
        updates: rounds whose model its update is part of.
        weight: the sum of its weights in them.
        downloads: seconds in which it was sent models to train, if it has a process of its own.
        trains: seconds in which it trained, in all; the same.
        slowest: seconds of its slowest training.
        failures: rounds in which it had no part.
        reason: why, the last time.
        is_benched: whether it is asked no more.
    """

    name: str
    updates: int = 0
    weight: float = 0.0
    downloads: float = 0.0
    trains: float = 0.0
    slowest: float = 0.0
    failures: int = 0
    reason: str = ""
    is_benched: bool = False


@dataclass
class EventsRecord:
    """All of it.

    Attributes:
        started: what the last sitting began with; None if no server came that far.
        journal: the events that a summary is made of.
        sittings: begin and end of each, in seconds since the epoch.
        resumed_from: the round that each sitting but the first went on from.
        spans: the phases of completed rounds, also of those that were done again later.
        sites: those that were asked to do anything.
        idle_rss: of each process that said so, in bytes.
        peak_rss: the same, at its end.
        unfinished: the round that was under way when the events end; None if none was.
        damaged: lines that could not be read.
    """

    started: RunStarted | None = None
    journal: Journal = field(default_factory=Journal)
    sittings: list[tuple[float, float]] = field(default_factory=list)
    resumed_from: list[int | None] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    sites: dict[str, SiteRecord] = field(default_factory=dict)
    idle_rss: dict[str, int] = field(default_factory=dict)
    peak_rss: dict[str, int] = field(default_factory=dict)
    unfinished: int | None = None
    damaged: int = 0
    _round_began: float = 0.0
    _states: dict[str, tuple[str, float]] = field(default_factory=dict)

    def apply(self, event: AnyEvent, counts: bool) -> None:
        """Take one event, in the order of the file.

        Args:
            event: what happened.
            counts: whether it is of a round that was not done again later.
        """
        self._tell_time(event)
        match event:
            case RunStarted():
                self.started = event
            case ProcessReady():
                self.idle_rss[event.process] = event.idle_rss
            case ProcessEnded():
                known = self.peak_rss.get(event.process, 0)
                self.peak_rss[event.process] = max(known, event.peak_rss)
            case RoundStarted():
                self._states.clear()
                self._round_began, self.unfinished = event.time, event.round
            case RunFinished() if event.status == "finished":
                self.unfinished = None
            case RoundFinished():
                self._add_spans(event)
            case Evaluated():
                self.spans.append(Span("evaluate", event.time - event.seconds, event.time))
        if counts:
            self._count(event)

    def _tell_time(self, event: AnyEvent) -> None:
        if isinstance(event, RunResumed):
            self.resumed_from.append(event.round)
            self.unfinished = None
        if isinstance(event, RunResumed) or not self.sittings:
            self.sittings.append((event.time, event.time))
        begin, end = self.sittings[-1]
        self.sittings[-1] = begin, max(end, event.time)

    def _count(self, event: AnyEvent) -> None:
        match event:
            case SiteState():
                self._change(event)
            case SiteFailed():
                site = self._site(event.site)
                site.failures, site.reason = site.failures + 1, event.reason
            case SiteBenched():
                self._site(event.site).is_benched = True
            case RoundFinished():
                for name, weight in event.weights.items():
                    site = self._site(name)
                    site.updates, site.weight = site.updates + 1, site.weight + weight

    def _change(self, event: SiteState) -> None:
        before, since = self._states.get(event.site, ("", 0.0))
        self._states[event.site] = event.state, event.time
        site, seconds = self._site(event.site), max(event.time - since, 0.0)
        if (before, event.state) == ("downloading", "training"):
            site.downloads += seconds
        elif before == "training":
            site.trains += seconds
            site.slowest = max(site.slowest, seconds)

    def _add_spans(self, event: RoundFinished) -> None:
        self.unfinished = None
        begin = self._round_began
        for phase, seconds in zip(PHASES, event.phases, strict=False):
            self.spans.append(Span(phase, begin, begin + seconds))
            begin += seconds

    def _site(self, name: str) -> SiteRecord:
        return self.sites.setdefault(name, SiteRecord(name))


def read_events(path: Path) -> EventsRecord:
    """Read ``events.jsonl``, passing over what is damaged in it.

    Args:
        path: of the file. If it is not there, nothing has happened.

    Raises:
        OSError: it cannot be read.
    """
    record = EventsRecord()
    try:
        limits = _limits(path)
    except FileNotFoundError:
        return record
    sitting = 0
    for line in _lines(path):
        try:
            event = decode_event(line)
        except (ValueError, RecursionError):
            record.damaged += 1
            continue
        if isinstance(event, RunResumed):
            sitting += 1
        number = getattr(event, "round", None)
        limit = limits[min(sitting, len(limits) - 1)]
        record.apply(event, limit is None or number is None or number <= limit)
        try:
            record.journal.apply(event)
        except ValueError:
            record.damaged += 1
    return record


def _limits(path: Path) -> list[int | None]:
    """The last round of each sitting that was not done again; None if all of them count."""
    resumed: list[int] = []
    for line in _lines(path):
        if line.startswith(_RESUMED):
            try:
                event = decode_event(line)
            except (ValueError, RecursionError):
                continue
            assert isinstance(event, RunResumed)
            resumed.append(-1 if event.round is None else event.round)
    return [min(resumed[sitting:], default=None) for sitting in range(len(resumed) + 1)]


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file. Of one that is too long, only its end comes, as a damaged one."""
    return (line for line in WholeLines(path, _MOST_LINE_BYTES) if line.endswith(b"\n"))
