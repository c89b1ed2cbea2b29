"""Times of a run's sittings, phases and processes."""

from __future__ import annotations

from typing import NamedTuple

from flstream.runs.round_record import PHASES
from flstream.telemetry.events import (
    AnyEvent,
    Evaluated,
    ModelScored,
    ProcessEnded,
    ProcessReady,
    RoundFinished,
    RoundStarted,
    RunFinished,
    RunResumed,
)

# Kinds of events that tell more than their time, since most events are of other kinds.
_KINDS = (
    *(RunResumed, ProcessReady, ProcessEnded, RoundStarted),
    *(RunFinished, RoundFinished, ModelScored, Evaluated),
)


class Span(NamedTuple):
    """A phase of a round: its begin and end in seconds since the epoch."""

    phase: str
    begin: float
    end: float


class Timeline:
    """Sittings, phases and processes of a run, from its events in their order.

    A *sitting* is a stretch in which the run was going on: from its begin or a resume to its end.

    Attributes:
        sittings: Begin and end of each sitting, in seconds since the epoch.
        resumes: Events that each sitting but the first began with.
        spans: Phases of rounds that came to their end.
        idle_rss: Resident bytes of each process after its imports, by name.
        peak_rss: Highest resident bytes of each process at its end, by name.
        round_under_way: Round that this sitting has begun and not finished; None if there is none.
    """

    def __init__(self) -> None:
        self.sittings: list[tuple[float, float]] = []
        self.resumes: list[RunResumed] = []
        self.spans: list[Span] = []
        self.idle_rss: dict[str, int] = {}
        self.peak_rss: dict[str, int] = {}
        self.round_under_way: int | None = None
        self._round_began = 0.0

    @property
    def seconds(self) -> float:
        """Running time: seconds from the first event to the last of each sitting, added up."""
        return sum(end - begin for begin, end in self.sittings)

    def apply(self, event: AnyEvent) -> None:
        """Take one event, in the order of the file."""
        if isinstance(event, RunResumed) and self.sittings:
            begin, end = self.sittings[-1]
            self.sittings[-1] = begin, max(end, event.until)
        if isinstance(event, RunResumed) or not self.sittings:
            self.sittings.append((event.time, event.time))
        elif event.time > self.sittings[-1][1]:  # a clock that was set back shortens no sitting
            self.sittings[-1] = (self.sittings[-1][0], event.time)
        if not isinstance(event, _KINDS):
            return
        match event:
            case RunResumed():
                self.resumes.append(event)
                self.round_under_way, self._round_began = None, event.time
            case ProcessReady():
                self.idle_rss[event.process] = event.idle_rss
            case ProcessEnded():
                known = self.peak_rss.get(event.process, 0)
                self.peak_rss[event.process] = max(known, event.peak_rss)
            case RoundStarted() if event.round != self.round_under_way:
                self.round_under_way, self._round_began = event.round, event.time
            case RunFinished() if event.status == "finished":
                self.round_under_way = None
            case RoundFinished():
                self.round_under_way = None
                self._add_spans(event)
            case ModelScored():
                self.spans.append(Span(PHASES[-1], event.time - event.seconds, event.time))
            case Evaluated() if not event.received:
                self.spans.append(Span(PHASES[-1], event.time - event.seconds, event.time))

    def _add_spans(self, event: RoundFinished) -> None:
        begin = self._round_began
        for phase, seconds in zip(PHASES, event.phases, strict=False):
            self.spans.append(Span(phase, begin, begin + seconds))
            begin += seconds
