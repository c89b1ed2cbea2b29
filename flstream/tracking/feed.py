"""What feeds a tracker from a run's journal, event by event."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from flstream.runs.journal import new_events
from flstream.runs.round_record import PHASES
from flstream.runs.run_directory import RunDirectory
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
        self._job = job
        self._run = run
        self._make = make
        self._end = 0
        self._points: Points | None = None

    def catch_up(self) -> None:
        """Give the tracker what the journal has by now.

        Raises:
            OSError: The journal cannot be read.
            ValueError: It is damaged.
            Exception: Whatever the tracker raises.
        """
        for event, end in new_events(self._run.events, self._end):
            if self._points is None:
                tracker = self._make(TrackedRun(self._job, self._run.path, event.time))
                self._points = Points(tracker, self._run.memory)
            self._end = end
            self._points.apply(event)
        if self._points is not None:
            self._points.flush()

    def close(self) -> None:
        """Give the tracker all that is left, as the run is over, and close it."""
        self.catch_up()
        if self._points is not None:
            self._points.close()
            self._points = None


class Points:
    """Gives a tracker the points that follow from events.

    Args:
        tracker: The tracker.
        memory: Path of ``memory.jsonl``.
    """

    def __init__(self, tracker: Tracker, memory: Path) -> None:
        self._tracker = tracker
        self._peaks = MemoryPeaks(memory)
        self._idle: dict[str, int] = {}
        # Sites that were asked to train, and whose update is yet to come.
        self._asked: set[str] = set()

    def apply(self, event: AnyEvent) -> None:
        """Take one event, in order."""
        match event:
            case ProcessReady():
                self._idle[event.process] = event.idle_rss
            case RunResumed():
                self._peaks.forget_until(event.time)
            case RoundStarted():
                self._asked.update(event.sites)
            case SiteUpdate() if event.site in self._asked:
                # A training that is repeated for its update alone is told of a second time.
                self._asked.discard(event.site)
                values = {"weight": event.weight, **_named("train/", event.metrics)}
                self._tracker.scalars(event.site, event.round, values, event.time)
            case SiteLog():
                self._log(event)
            case RoundFinished():
                self._finish_round(event)
            case Evaluated():
                self._evaluate(event)

    def flush(self) -> None:
        """Add the memory of rounds whose samples are all there, and flush the tracker."""
        for each in self._peaks.take():
            self._add_peaks(each)
        self._tracker.flush()

    def close(self) -> None:
        """Add the memory of the last rounds, as there are no more events, and close the tracker."""
        for each in self._peaks.take_rest():
            self._add_peaks(each)
        self._tracker.close()

    def _log(self, event: SiteLog) -> None:
        source = event.site or GLOBAL
        step = event.round if event.step is None else event.step
        if event.text is not None:
            self._tracker.text(source, step, event.key, event.text, event.time)
        else:
            values = _named("", {event.key: event.value})
            self._tracker.scalars(source, step, values, event.time)

    def _finish_round(self, event: RoundFinished) -> None:
        phases = zip(PHASES, event.phases, strict=False)
        values = {
            **_named("train/", event.metrics),
            **{f"seconds/{phase.replace(' ', '_')}": seconds for phase, seconds in phases},
            "bytes/down": float(event.down.bytes),
            "bytes/up": float(event.up.bytes),
        }
        self._tracker.scalars(GLOBAL, event.round, values, event.time)
        self._peaks.end_round(event.round, event.time)

    def _evaluate(self, event: Evaluated) -> None:
        values = dict(_named("", event.metrics))
        if not event.received:  # which costs nothing
            values[f"seconds/{PHASES[-1]}"] = event.seconds
            values[f"bytes/{PHASES[-1]}"] = float(event.down.bytes)
        self._tracker.scalars(GLOBAL, event.round, values, event.time)

    def _add_peaks(self, peaks: RoundPeaks) -> None:
        found: dict[str, dict[str, float]] = {GLOBAL: {}}
        for process, rss in peaks.rss.items():
            idle = self._idle.get(process)
            # Only of the server, and of processes that do the work of sites, idle memory is known.
            if idle is not None and not process.startswith("worker-"):
                source, name = (GLOBAL, "server_") if process == SERVER else (process, "")
                over = max(rss - idle, 0)
                found.setdefault(source, {})[f"memory/{name}over_idle"] = float(over)
        if peaks.total:
            found[GLOBAL]["memory/all_processes"] = float(peaks.total)
        for source, values in found.items():
            if values:
                self._tracker.scalars(source, peaks.round, values, peaks.time)


def _named(prefix: str, metrics: Metrics) -> Mapping[str, float]:
    """Numbers under their names in trackers; what is not finite is null in the journal."""
    return {
        f"{prefix}{name}": math.nan if value is None else value for name, value in metrics.items()
    }
