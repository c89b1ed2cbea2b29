"""Progress of a run as lines of text, for pipes, files and logs: a line for each result."""

from __future__ import annotations

from rich.console import Console

from flstream.report.text import (
    counted,
    format_clock,
    format_metrics,
    nodes_awaited,
    pieces,
    privacy_words,
)
from flstream.runs.round_record import PHASES
from flstream.telemetry.events import (
    AnyEvent,
    EndedEarly,
    Evaluated,
    ModelReady,
    ModelsCollected,
    ModelScored,
    NodeJoined,
    NodeLost,
    NodesAwaited,
    Progress,
    RoundFinished,
    RoundStarted,
    RunFinished,
    RunResumed,
    RunStarted,
    SiteFailed,
    SiteSuspended,
    Warned,
)
from flstream.telemetry.memory import MemorySampler
from flstream.text import MOST_ON_A_LINE, MOST_QUOTED, printable, quotable, shortened
from flstream.units import format_bytes, format_seconds

# Maximum number of failures and warnings that are printed in a round, which may have thousands;
# the others are counted.
_MOST_PRINTED = 5
# Duration from which on the beginning of a round is printed too, not just its end.
_ANNOUNCED_AFTER_SECONDS = 1.0


class PlainView:
    """Listener of a run that prints a line for each important event, with the elapsed time.

    Args:
        console: console to print to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rounds = 0
        self._began: float | None = None
        self._round: RoundStarted | None = None
        self._asked = 0
        self._is_announced = False
        self._is_folding = False
        self._printed = 0
        self._left_out = 0

    def __call__(self, event: AnyEvent, sampler: MemorySampler) -> None:
        """Handle an event of the run."""
        if self._began is None:
            self._began = event.time
        if isinstance(event, RunStarted):
            self._rounds = event.rounds
        if isinstance(event, SiteFailed | SiteSuspended | Warned):
            self._printed += 1
            if self._printed > _MOST_PRINTED:
                self._left_out += 1
                return
        elif isinstance(event, RoundFinished | Evaluated | ModelScored | RunFinished):
            self._print_left_out(event)
        self._announce(event)
        line = self._line(event)
        if line is not None:
            self._print(event, line)

    def _print(self, event: AnyEvent, line: str) -> None:
        assert self._began is not None
        clock = format_clock(event.time - self._began)
        self._console.out(f"{clock}  {shortened(line, MOST_ON_A_LINE)}", highlight=False)

    def _announce(self, event: AnyEvent) -> None:
        """Print that the current round has begun, once it has taken long enough."""
        started = self._round
        if started is None or self._is_announced or isinstance(event, RoundFinished):
            return
        # Events of progress come all the time, so this is not late.
        failed = isinstance(event, SiteFailed | RunFinished)
        if failed or event.time - started.time >= _ANNOUNCED_AFTER_SECONDS:
            self._is_announced = True
            text = f"{counted(self._asked, 'site')} training"
            self._print(started, self._of(started.round, text))

    def _print_left_out(self, event: AnyEvent) -> None:
        if self._left_out:
            more = f"... and {self._left_out:,} more failures and warnings"
            self._print(event, f"{more}; summary.json has all of them")
        self._printed = self._left_out = 0

    def _line(self, event: AnyEvent) -> str | None:
        match event:
            case RunStarted():
                return _started(event)
            case ModelReady():
                return f"model: {format_bytes(event.bytes)} in {counted(event.tensors, 'tensor')}"
            case RoundStarted():
                self._begin(event)
            case Progress(up=up) if up and self._round and self._is_announced:
                if not self._is_folding:
                    self._is_folding = True
                    text = f"folding {counted(len(up), 'update')}"
                    return self._of(self._round.round, text)
            case RoundFinished():
                self._round = None
                return self._of(event.round, _finished(event))
            case Evaluated():
                scores = format_metrics(event.metrics) or "no metrics"
                if event.received:
                    text = f"scored by those who received it, {scores}"
                    return self._of(event.round, text) if event.round else f"round 0: {text}"
                text = f"evaluated in {format_seconds(event.seconds)}, {scores}"
                return self._of(event.round, text)
            case ModelsCollected():
                return _collected(event)
            case ModelScored():
                return _scored(event)
            case SiteFailed():
                where = f"round {event.round}: " if event.round else ""
                return (
                    f"{where}{printable(event.site)} failed: {quotable(event.reason, MOST_QUOTED)}"
                )
            case SiteSuspended():
                times = counted(event.failures, "time")
                return f"{printable(event.site)} is asked no more: it failed {times} in a row"
            case EndedEarly():
                return f"the job ends after round {event.round}: {printable(event.reason)}"
            case NodesAwaited():
                return ": ".join(filter(None, [nodes_awaited(event), printable(event.command)]))
            case NodeJoined():
                return (
                    f"{printable(event.node)} joined, with room for {counted(event.cpus, 'worker')}"
                )
            case NodeLost():
                return f"warning: node {printable(event.node)}: {printable(event.reason)}"
            case RunResumed():
                return "; ".join(["the run goes back", *map(printable, event.warnings)])
            case Warned():
                return f"warning: {printable(event.message)}"
            case RunFinished(status="failed"):
                return f"the run failed: {printable(event.error)}"
            case RunFinished():
                return f"the run {'was stopped' if event.status == 'stopped' else 'finished'}"
        return None

    def _begin(self, event: RoundStarted) -> None:
        self._is_folding = False
        if self._round is None or self._round.round != event.round:
            self._round, self._is_announced, self._asked = event, False, 0
        # A round may ask sites more than once, and is announced only once.
        self._asked += len(event.sites)

    def _of(self, number: int, text: str) -> str:
        if not number:
            return f"the initial model: {text}"
        return f"round {number} of {self._rounds}: {text}"


def _started(event: RunStarted) -> str:
    sites = counted(event.clients, "site")
    if event.workers:
        sites += f" in {counted(len(event.workers), 'process')}"
    rounds = counted(event.rounds, "round") if event.rounds else "evaluation alone"
    mode = f"{event.mode} mode"
    return f"{event.job}: {rounds}, {sites}, {mode}, {pieces(event.chunk_size)}"


def _collected(event: ModelsCollected) -> str:
    took = format_seconds(event.seconds)
    if not event.failures:
        return f"collected the models of {counted(len(event.sites), 'site')} in {took}"
    site, reason = next(iter(event.failures.items()))
    more = f", and {len(event.failures) - 1:,} more" if len(event.failures) > 1 else ""
    whole = len(event.sites) + len(event.failures)
    return (
        f"collected {len(event.sites):,} models of {counted(whole, 'site')} in {took}; none of "
        f"{printable(site)} ({quotable(reason, MOST_QUOTED)}){more}"
    )


def _scored(event: ModelScored) -> str:
    scores = format_metrics(event.metrics)
    found = f", {scores} on average" if scores else ""
    where = f"{counted(event.sites, 'site')} in {format_seconds(event.seconds)}"
    return f"{printable(event.owner) or 'a model'} scored by {where}{found}"


def _finished(event: RoundFinished) -> str:
    steps = zip(PHASES, event.phases, strict=False)
    split = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in steps)
    trained = f"; sites report {format_metrics(event.metrics)}" if event.metrics else ""
    spent = "" if event.privacy is None else f"; {privacy_words(event.privacy)}"
    where = f", folded at {printable(event.aggregator)}" if event.aggregator else ""
    return f"done in {format_seconds(sum(event.phases))} ({split}){where}{trained}{spent}"
