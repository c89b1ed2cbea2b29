"""Feed of a tracker from a run's journal, event by event."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from flstream.runs.round_record import PHASES
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.event_log import WholeLines
from flstream.telemetry.events import (
    SERVER,
    AnyEvent,
    Evaluated,
    Metrics,
    ProcessReady,
    RoundFinished,
    RoundStarted,
    RunResumed,
    SiteLog,
    SiteUpdate,
    decode_event,
)
from flstream.tracking.memory_peaks import MemoryPeaks, RoundPeaks
from flstream.tracking.tracker import GLOBAL, TrackedRun, Tracker


class TrackerFeed:
    """Reads a journal as it grows, and gives a tracker the points of its events.

    A sitting of a run begins with the first line of the journal, which the resume has cut: the
    tracker replaces what it had of the run.

    Args:
        job: Name of the job.
        run: The run directory.
        make: Function that returns a new tracker.
    """

    def __init__(self, job: str, run: RunDirectory, make: Callable[[TrackedRun], Tracker]) -> None:
        self._job, self._run, self._make = job, run, make
        self._journal = WholeLines(run.events)
        self._peaks = MemoryPeaks(run.memory)
        self._tracker: Tracker | None = None
        self._idle: dict[str, int] = {}
        # Sites that were asked to train, and whose update is yet to come.
        self._asked: set[str] = set()

    def catch_up(self) -> None:
        """Give the tracker what the journal has by now.

        Raises:
            OSError: The journal cannot be read.
            ValueError: It is damaged.
            Exception: Whatever the tracker raises.
        """
        for line in self._journal:
            event = decode_event(line)
            if self._tracker is None:
                self._tracker = self._make(TrackedRun(self._job, self._run.path, event.time))
            self._apply(self._tracker, event)
        if self._tracker is not None:
            self._add_peaks(self._tracker, self._peaks.take())
            self._tracker.flush()

    def close(self) -> None:
        """Give the tracker all that is left, as the run is over, and close it."""
        self.catch_up()
        if self._tracker is not None:
            self._add_peaks(self._tracker, self._peaks.take(is_over=True))
            self._tracker.close()

    def _apply(self, tracker: Tracker, event: AnyEvent) -> None:
        match event:
            case ProcessReady():
                self._idle[event.process] = event.idle_rss
            case RunResumed():
                self._peaks.end_round(None, event.time)
            case RoundStarted():
                self._asked.update(event.sites)
            case SiteUpdate() if event.site in self._asked:
                # A training that is repeated for its update alone is told of a second time.
                self._asked.discard(event.site)
                values = {"weight": event.weight, **_named("train/", event.metrics)}
                tracker.scalars(event.site, event.round, values, event.time)
            case SiteLog():
                source = event.site or GLOBAL
                step = event.round if event.step is None else event.step
                if event.text is not None:
                    tracker.text(source, step, event.key, event.text, event.time)
                else:
                    values = _named("", {event.key: event.value})
                    tracker.scalars(source, step, values, event.time)
            case RoundFinished():
                values = _named("train/", event.metrics)
                for phase, seconds in zip(PHASES, event.phases, strict=False):
                    values[f"seconds/{phase.replace(' ', '_')}"] = seconds
                values |= {"bytes/down": float(event.down.bytes), "bytes/up": float(event.up.bytes)}
                tracker.scalars(GLOBAL, event.round, values, event.time)
                self._peaks.end_round(event.round, event.time)
            case Evaluated():
                values = _named("", event.metrics)
                if not event.received:  # which costs nothing
                    values[f"seconds/{PHASES[-1]}"] = event.seconds
                    values[f"bytes/{PHASES[-1]}"] = float(event.down.bytes)
                tracker.scalars(GLOBAL, event.round, values, event.time)

    def _add_peaks(self, tracker: Tracker, rounds: Iterable[RoundPeaks]) -> None:
        for peaks in rounds:
            points: dict[str, dict[str, float]] = {GLOBAL: {}}
            for process, rss in peaks.rss.items():
                idle = self._idle.get(process)
                # Of the server alone, and of processes that do the work of sites, it is known.
                if idle is not None and not process.startswith("worker-"):
                    source, name = (GLOBAL, "server_") if process == SERVER else (process, "")
                    over = float(max(rss - idle, 0))
                    points.setdefault(source, {})[f"memory/{name}over_idle"] = over
            if peaks.total:
                points[GLOBAL]["memory/all_processes"] = float(peaks.total)
            for source, values in points.items():
                if values:
                    tracker.scalars(source, peaks.round, values, peaks.time)


def _named(prefix: str, metrics: Metrics) -> dict[str, float]:
    """Numbers under their names in trackers; what is not finite is null in the journal."""
    return {
        f"{prefix}{name}": math.nan if value is None else value for name, value in metrics.items()
    }
