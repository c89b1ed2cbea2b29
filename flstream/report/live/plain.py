"""Progress of a run as lines of text, for pipes, files and logs."""

from __future__ import annotations

import time

from rich.console import Console

from flstream.report.live.run_state import RunStart
from flstream.report.text import (
    counted,
    format_clock,
    format_metrics,
    pieces,
    privacy_words,
)
from flstream.runs.history import PHASES
from flstream.telemetry import events
from flstream.telemetry.memory import MemorySampler
from flstream.text import MOST_ON_A_LINE, MOST_QUOTED, printable, quotable, shortened
from flstream.units import format_bytes, format_seconds

# Failures and warnings that are printed of a round, which may have thousands; the others are
# counted.
_MOST_PRINTED = 5
# Seconds of a round after which its beginning is printed too, not just its end.
_ANNOUNCED_AFTER_SECONDS = 1.0
_LONG_SECONDS = 5.0  # of a run's start, after which its phase is printed


class PlainView:
    """Listener that prints a line for each important event, with the elapsed time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rounds = 0
        self._began = self._printed = float("-inf")
        self._troubles = self._left_out = 0
        self._round = self._asked = 0
        self._begun: float | None = None  # when the round began, until that is printed
        self.start, self._created, self._waited = RunStart(), time.time(), ""

    def tick(self) -> None:
        """Print the phase of the run's start, if that takes long. Another thread may do so."""
        is_long, phase = time.time() >= self._created + _LONG_SECONDS, self.start.phase
        if is_long and phase != self._waited and not self.start.is_over:
            self._waited = phase
            self._began = self._created if self._began < 0 else self._began
            self._print(time.time(), phase)

    def __call__(self, event: events.AnyEvent, sampler: MemorySampler) -> None:
        """Handle an event of the run."""
        self.start.apply(event)
        if self._began < 0:
            self._began = event.time
        self._announce(event)
        lines = []
        match event:
            case events.SiteFailed(late=True):
                self._left_out += 1  # no trouble: the line of the round says how many
                return
            case events.SiteFailed() | events.SiteSuspended() | events.Warned():
                self._troubles += 1
                if self._troubles > _MOST_PRINTED:
                    return
            case (
                events.RoundFinished()
                | events.Evaluated()
                | events.ModelScored()
                | events.RunFinished()
            ):
                if self._troubles > _MOST_PRINTED:
                    more = f"... and {self._troubles - _MOST_PRINTED:,} more failures and warnings"
                    lines.append(f"{more}; summary.json has all of them")
                self._troubles = 0
        lines.append(self._line(event))
        for line in filter(None, lines):
            self._print(event.time, line)

    def _print(self, time: float, line: str) -> None:
        # An event may be older than what the tick has printed meanwhile.
        self._printed = max(self._printed, time)
        clock = format_clock(self._printed - self._began)
        self._console.out(f"{clock}  {shortened(line, MOST_ON_A_LINE)}", highlight=False)

    def _announce(self, event: events.AnyEvent) -> None:
        """Print that a round has begun, once it has taken long enough."""
        if isinstance(event, events.RoundStarted):
            if event.round != self._round:
                self._round, self._asked, self._begun = event.round, 0, event.time
            self._asked += len(event.sites)
        if isinstance(event, events.RoundFinished):
            self._begun = None
        # Snapshots come all the time, so this is not late.
        failed = isinstance(event, events.RunFinished) or (
            isinstance(event, events.SiteFailed) and not event.late
        )
        began = self._begun
        if began is not None and (failed or event.time - began >= _ANNOUNCED_AFTER_SECONDS):
            self._begun = None
            sites = counted(self._asked, "site")
            self._print(began, self._of(self._round, f"{sites} training"))

    def _line(self, event: events.AnyEvent) -> str:
        """Return the line of an event; empty for none."""
        match event:
            case events.RunStarted():
                self._rounds = event.rounds
                return _started(event)
            case events.BaseReady():
                return f"base: {format_bytes(event.bytes)} in {counted(event.tensors, 'tensor')}"
            case events.ModelReady():
                return f"model: {format_bytes(event.bytes)} in {counted(event.tensors, 'tensor')}"
            case events.RoundFinished():
                left_out, self._left_out = self._left_out, 0
                return self._of(event.round, _finished(event, left_out))
            case events.Evaluated(received=True):
                metrics = event.metrics or event.site_metrics or {}
                scores = format_metrics(metrics) or "no metrics"
                return self._of(event.round, f"scored by those who received it, {scores}")
            case events.Evaluated():
                took = format_seconds(event.seconds)
                return self._of(event.round, f"evaluated in {took}, {_scores(event)}")
            case events.ModelsCollected():
                return _collected(event)
            case events.ModelScored():
                owner = printable(event.owner) or "a model"
                where = f"{counted(event.sites, 'site')} in {format_seconds(event.seconds)}"
                return f"{owner} scored by {where}, {_scores(event)}"
            case events.SiteFailed():
                where = f"round {event.round}: " if event.round else ""
                reason = quotable(event.reason, MOST_QUOTED)
                return f"{where}{printable(event.site)} failed: {reason}"
            case events.SiteSuspended():
                times = counted(event.failures, "time")
                return f"{printable(event.site)} is asked no more: it failed {times} in a row"
            case events.EndedEarly():
                return f"the job ends after round {event.round}: {printable(event.reason)}"
            case events.NodesAwaited():
                return "waiting for nodes"
            case events.NodeJoined():
                workers = counted(event.cpus, "worker")
                return f"{printable(event.node)} joined, with room for {workers}"
            case events.NodeLost():
                return f"warning: node {printable(event.node)}: {printable(event.reason)}"
            case events.RunResumed():
                return "; ".join(["the run resumes", *map(printable, event.warnings)])
            case events.Warned():
                return f"warning: {printable(event.message)}"
            case events.RunFinished(status="failed"):
                return f"the run failed: {printable(event.error)}"
            case events.RunFinished():
                return f"the run {'was stopped' if event.status == 'stopped' else 'finished'}"
        return ""

    def _of(self, number: int, text: str) -> str:
        return f"round {number} of {self._rounds}: {text}" if number else f"initial model: {text}"


def _started(event: events.RunStarted) -> str:
    sites = counted(event.clients, "site")
    if event.workers:
        sites += f" in {counted(len(event.workers), 'process')}"
    rounds = counted(event.rounds, "round") if event.rounds else "evaluation alone"
    return f"{event.job}: {rounds}, {sites}, {event.mode} mode, {pieces(event.chunk_size)}"


def _scores(event: events.Evaluated | events.ModelScored) -> str:
    return format_metrics(event.metrics) or "no metrics"


def _collected(event: events.ModelsCollected) -> str:
    took = format_seconds(event.seconds)
    text = f"collected the models of {counted(len(event.sites), 'site')} in {took}"
    if not event.failures:
        return text
    site, reason = next(iter(event.failures.items()))
    more = f", and {len(event.failures) - 1:,} more" if len(event.failures) > 1 else ""
    return f"{text}; none of {printable(site)} ({quotable(reason, MOST_QUOTED)}){more}"


def _finished(event: events.RoundFinished, left_out: int) -> str:
    steps = zip(PHASES, event.phases, strict=False)
    split = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in steps)
    trained = f"; sites report {format_metrics(event.metrics)}" if event.metrics else ""
    spent = "" if event.privacy is None else f"; {privacy_words(event.privacy)}"
    where = f", folded at {printable(event.aggregator)}" if event.aggregator else ""
    took = format_seconds(sum(event.phases))
    if event.simulated_seconds is not None:
        took += f", at {format_seconds(event.simulated_seconds)} simulated"
    late = f", {left_out:,} late or away" if left_out else ""
    return f"done in {took} ({split}){where}{late}{trained}{spent}"
