"""Feed of a tracker by a run's journal and memory samples, on a thread of the launcher."""

from __future__ import annotations

import math
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from flstream.debugging import code_failed, waiting
from flstream.errors import AbortedError
from flstream.job.code import check, make
from flstream.job.sections import TrackingSection
from flstream.runs.history import PHASES
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
from flstream.telemetry.memory import read_samples
from flstream.tracking.tracker import GLOBAL, TrackedRun, Tracker
from flstream.transport.channel import Signal

TRACKER = "tracker"

# Time for the tracker to take the last points once the run is over.
_FINISH_SECONDS = 60.0
# The run goes first where there are few cores.
_NICE, _MOST_NICE = 5, 19


class TrackerThread(threading.Thread):
    """Feed of a tracker from the journal, for which the run never waits.

    A tracker that raises, hangs or calls ``sys.exit`` ends nothing but itself.

    Args:
        tracking: Section of the job that names the tracker.
        job: Name of the job.
        run: The run directory.
    """

    def __init__(self, tracking: TrackingSection, job: str, run: RunDirectory) -> None:
        super().__init__(name=TRACKER, daemon=True)
        self._tracking = tracking
        self._feed = TrackerFeed(job, run, self._new_tracker)
        self._woken, self._ended = threading.Event(), Signal()
        self._is_over = self._is_closed = False
        self._failure = ""

    def run(self) -> None:
        """Feed the tracker until the run is over."""
        try:
            number = threading.get_native_id()
            nice = min(os.getpriority(os.PRIO_PROCESS, number) + _NICE, _MOST_NICE)
            os.setpriority(os.PRIO_PROCESS, number, nice)  # of this thread alone
            while True:
                with waiting():
                    self._woken.wait()
                self._woken.clear()
                if self._is_closed:
                    return
                if self._is_over:
                    self._feed.close()
                    return
                self._feed.catch_up()
        except BaseException as error:
            self._failure = f"raised {type(error).__name__}: {error}".rstrip(": ")
            with suppress(AbortedError):
                code_failed(error)
        finally:
            self._ended.set()

    def wake(self) -> None:
        """Announce new events in the journal."""
        self._woken.set()

    def finish(self, attend: Callable[[int], None]) -> Sequence[str]:
        """Wait until the tracker has the last points, and the thread has ended.

        Args:
            attend: Function that serves threads until a descriptor is readable, as pdb needs.

        Returns:
            A warning if the tracker has failed; else nothing.
        """
        self._is_over = True
        self._woken.set()
        attend(self._ended.fileno())
        end = select.poll()
        end.register(self._ended, select.POLLIN)
        if not end.poll(_FINISH_SECONDS * 1e3):
            self._failure = f"did not take the last points within {_FINISH_SECONDS:.0f} s"
        failure = f"tracking has ended early: {self._tracking.name} {self._failure}"
        return [failure] if self._failure else []

    def close(self) -> None:
        """Give the tracker no more points."""
        self._is_closed = True
        self._woken.set()
        if self._ended.is_set():
            self._ended.close()

    def _new_tracker(self, run: TrackedRun) -> Tracker:
        assert self._tracking.place is not None
        tracker: Tracker = make(self._tracking.place, dict(self._tracking.args), run)
        check(tracker, f"tracking.type {self._tracking.name}", Tracker)
        return tracker


class TrackerFeed:
    """Reader of a growing journal that gives a tracker the points of its events.

    A sitting of a run begins with the first line of the journal, which the resume has cut: the
    tracker replaces what it had of the run.
    """

    def __init__(self, job: str, run: RunDirectory, make: Callable[[TrackedRun], Tracker]) -> None:
        self._job, self._run, self._make = job, run, make
        self._journal = WholeLines(run.events)
        self._peaks = _MemoryPeaks(run.memory)
        self._tracker: Tracker | None = None
        self._idle: dict[str, int] = {}
        # Sites that were asked to train, and whose update is yet to come.
        self._asked: set[str] = set()

    def catch_up(self) -> None:
        """Give the tracker the journal's new events."""
        for line in self._journal:
            event = decode_event(line)
            if self._tracker is None:
                self._tracker = self._make(TrackedRun(self._job, self._run.path, event.time))
            self._apply(self._tracker, event)
        if self._tracker is not None:
            self._add_peaks(self._tracker)
            self._tracker.flush()

    def close(self) -> None:
        """Give the tracker the rest of an ended run, and close it."""
        self.catch_up()
        if self._tracker is not None:
            self._add_peaks(self._tracker, is_over=True)
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
                values = _named("", event.metrics) | _named("sites/", event.site_metrics or {})
                if not event.received:  # which costs nothing
                    values[f"seconds/{PHASES[-1]}"] = event.seconds
                    values[f"bytes/{PHASES[-1]}"] = float(event.down.bytes)
                tracker.scalars(GLOBAL, event.round, values, event.time)

    def _add_peaks(self, tracker: Tracker, *, is_over: bool = False) -> None:
        for number, time, highest in self._peaks.take(is_over=is_over):
            for process, rss in highest.items():
                idle = self._idle.get(process)
                # Memory over idle is known of the server, and of sites' own processes.
                if idle is not None and not process.startswith("worker-"):
                    source, name = (GLOBAL, "server_") if process == SERVER else (process, "")
                    over = {f"memory/{name}over_idle": float(max(rss - idle, 0))}
                    tracker.scalars(source, number, over, time)


class _MemoryPeaks:
    """Highest memory of processes in each round, from ``memory.jsonl`` as it grows."""

    def __init__(self, path: Path) -> None:
        self._lines = WholeLines(path)
        # Ends of rounds whose samples are not all read yet; None is of samples of no round.
        self._ends: deque[tuple[int | None, float]] = deque()
        self._rss: dict[str, int] = {}

    def end_round(self, number: int | None, time: float) -> None:
        self._ends.append((number, time))

    def take(self, *, is_over: bool) -> Iterator[tuple[int, float, dict[str, int]]]:
        """Yield the rounds that have a later sample; all rounds once the run has ended.

        Each with the time of its end, and the highest RSS of each process.
        """
        if not self._ends:
            return  # the samples may wait
        # A line that a crash has torn is followed by sound ones after a resume.
        for sample in filter(None, read_samples(self._lines)):
            while self._ends and sample.time > self._ends[0][1]:
                yield from self._end()
            self._rss[sample.process] = max(sample.rss, self._rss.get(sample.process, 0))
        while is_over and self._ends:
            yield from self._end()

    def _end(self) -> Iterator[tuple[int, float, dict[str, int]]]:
        number, time = self._ends.popleft()
        if number is not None and self._rss:
            yield number, time, self._rss
        self._rss = {}


def _named(prefix: str, metrics: Metrics) -> dict[str, float]:
    """Return numbers under their names in trackers; a null of the journal as NaN."""
    return {
        f"{prefix}{name}": math.nan if value is None else value for name, value in metrics.items()
    }
