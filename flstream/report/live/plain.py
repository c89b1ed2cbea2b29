"""A run as lines of text, for pipes, files and logs: what was settled, not how far it is."""

from __future__ import annotations

from rich.console import Console

from flstream.report.record.events import PHASES
from flstream.report.text import counted, format_clock, format_metrics, pieces, printable
from flstream.telemetry.events import (
    AnyEvent,
    EndedEarly,
    Evaluated,
    ModelReady,
    Progress,
    RoundFinished,
    RoundStarted,
    RunFinished,
    RunStarted,
    SiteBenched,
    SiteFailed,
    Warned,
)
from flstream.telemetry.memory import MemorySampler
from flstream.units import format_bytes, format_seconds

# Of what may happen to every one of a thousand sites in a round, so much is told, and the rest
# counted.
_MOST_TOLD = 5
# Of a round that is over sooner, the line at its end says it all.
_ANNOUNCED_AFTER_SECONDS = 1.0


class PlainView:
    """A listener that prints a line for each event that a reader of a log wants to find.

    Each begins with how long the run has been going on.

    Args:
        console: where to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rounds = 0
        self._began: float | None = None
        self._round: RoundStarted | None = None
        self._is_announced = False
        self._is_folding = False
        self._told = 0
        self._untold = 0

    def __call__(self, event: AnyEvent, sampler: MemorySampler) -> None:
        """Take one event."""
        if self._began is None:
            self._began = event.time
        if isinstance(event, RunStarted):
            self._rounds = event.rounds
        if isinstance(event, SiteFailed | SiteBenched | Warned):
            self._told += 1
            if self._told > _MOST_TOLD:
                self._untold += 1
                return
        elif isinstance(event, RoundFinished | Evaluated | RunFinished):
            self._count_untold(event)
        self._announce(event)
        line = self._line(event)
        if line is not None:
            self._print(event, line)

    def _print(self, event: AnyEvent, line: str) -> None:
        assert self._began is not None
        clock = format_clock(event.time - self._began)
        self._console.out(f"{clock}  {line}", highlight=False)

    def _announce(self, event: AnyEvent) -> None:
        """Say that a round began, once it is one that somebody may wait for."""
        started = self._round
        if started is None or self._is_announced or isinstance(event, RoundFinished):
            return
        # While a round goes on its progress is told, so this comes about in time.
        failed = isinstance(event, SiteFailed | RunFinished)
        if failed or event.time - started.time >= _ANNOUNCED_AFTER_SECONDS:
            self._is_announced = True
            said = f"{counted(len(started.sites), 'site')} training"
            self._print(started, self._of(started.round, said))

    def _count_untold(self, event: AnyEvent) -> None:
        if self._untold:
            more = f"... and {self._untold:,} more failures and warnings"
            self._print(event, f"{more}; summary.json has all of them")
        self._told = self._untold = 0

    def _line(self, event: AnyEvent) -> str | None:
        match event:
            case RunStarted():
                return _started(event)
            case ModelReady():
                return f"model: {format_bytes(event.bytes)} in {counted(event.tensors, 'tensor')}"
            case RoundStarted():
                self._round, self._is_announced, self._is_folding = event, False, False
            case Progress(up=up) if up and self._round and self._is_announced:
                if not self._is_folding:
                    self._is_folding = True
                    said = f"folding {counted(len(up), 'update')}"
                    return self._of(self._round.round, said)
            case RoundFinished():
                self._round = None
                return self._of(event.round, _finished(event))
            case Evaluated():
                scores = format_metrics(event.metrics) or "no metrics"
                said = f"evaluated in {format_seconds(event.seconds)}, {scores}"
                return self._of(event.round, said)
            case SiteFailed():
                where = f"round {event.round}: " if event.round else ""
                return f"{where}{printable(event.site)} failed: {printable(event.reason)}"
            case SiteBenched():
                times = counted(event.failures, "time")
                return f"{printable(event.site)} is asked no more: it failed {times} in a row"
            case EndedEarly():
                return f"the job ends after round {event.round}: {printable(event.reason)}"
            case Warned():
                return f"warning: {printable(event.message)}"
            case RunFinished(status="failed"):
                return f"the run failed: {printable(event.error)}"
            case RunFinished():
                return f"the run {'was stopped' if event.status == 'stopped' else 'finished'}"
        return None

    def _of(self, number: int, said: str) -> str:
        return f"round {number} of {self._rounds}: {said}"


def _started(event: RunStarted) -> str:
    sites = counted(event.clients, "site")
    if event.workers:
        sites += f" in {counted(len(event.workers), 'process')}"
    rounds, mode = counted(event.rounds, "round"), f"{event.mode} mode"
    return f"{event.job}: {rounds}, {sites}, {mode}, {pieces(event.chunk_size)}"


def _finished(event: RoundFinished) -> str:
    steps = zip(PHASES, event.phases, strict=False)
    split = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in steps)
    trained = f"; sites report {format_metrics(event.metrics)}" if event.metrics else ""
    return f"done in {format_seconds(sum(event.phases))} ({split}){trained}"
