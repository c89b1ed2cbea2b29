"""A run as lines of text, for pipes, files and logs: what was settled, not how far it is."""

from __future__ import annotations

from rich.console import Console

from flstream.report.text import counted, format_metrics, printable
from flstream.telemetry.events import (
    AnyEvent,
    Evaluated,
    ModelReady,
    RoundFinished,
    RoundStarted,
    RunFinished,
    RunStarted,
    SiteFailed,
    Warned,
)
from flstream.telemetry.memory import MemorySampler
from flstream.units import format_bytes, format_seconds


class PlainView:
    """A listener that prints a line for each event that a reader of a log wants to find.

    Args:
        console: where to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rounds = 0

    def __call__(self, event: AnyEvent, sampler: MemorySampler) -> None:
        """Take one event."""
        if isinstance(event, RunStarted):
            self._rounds = event.rounds
        line = self._line(event)
        if line is not None:
            self._console.out(line, highlight=False)

    def _line(self, event: AnyEvent) -> str | None:
        match event:
            case RunStarted():
                size = (
                    f"chunks of {format_bytes(event.chunk_size)}"
                    if event.chunk_size
                    else "each model in one piece"
                )
                rounds, sites = counted(event.rounds, "round"), counted(len(event.sites), "site")
                return f"{event.job}: {rounds}, {sites}, {event.mode} mode, {size}"
            case ModelReady():
                return f"model: {format_bytes(event.bytes)} in {counted(event.tensors, 'tensor')}"
            case RoundStarted():
                sites = counted(len(event.sites), "site")
                return f"round {event.round} of {self._rounds}: {sites} training"
            case RoundFinished():
                return f"round {event.round} of {self._rounds}: {_finished(event)}"
            case Evaluated():
                scores = format_metrics(event.metrics) or "no metrics"
                said = f"evaluated in {format_seconds(event.seconds)}, {scores}"
                return f"round {event.round} of {self._rounds}: {said}"
            case SiteFailed():
                return f"round {event.round}: {event.site} failed: {printable(event.reason)}"
            case Warned():
                return f"warning: {event.message}"
            case RunFinished(status="failed"):
                return f"the run failed: {printable(event.error)}"
            case RunFinished():
                return f"the run {'was stopped' if event.status == 'stopped' else 'finished'}"
        return None


def _finished(event: RoundFinished) -> str:
    phases = {
        "download": event.download,
        "train": event.train,
        "upload and fold": event.upload_and_fold,
        "checkpoint": event.checkpoint,
    }
    split = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in phases.items())
    trained = f"; sites report {format_metrics(event.metrics)}" if event.metrics else ""
    return f"done in {format_seconds(sum(phases.values()))} ({split}){trained}"
