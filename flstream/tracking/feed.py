"""What feeds a tracker from a run's journal, such that it has every point that counts once."""

from __future__ import annotations

from collections.abc import Callable

from flstream.runs.history import History
from flstream.runs.journal import new_events, read_events
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.events import AnyEvent, RunResumed
from flstream.tracking.points import KINDS, Points
from flstream.tracking.tracker import TrackedRun, Tracker


class TrackerFeed:
    """Reads a journal as it grows, and gives a tracker the points of what counts.

    Where the run goes on after an interruption, or sites begin a task anew, part of what the
    tracker was given is void. So it is closed, and another one is given all that counts from the
    beginning.

    Args:
        job: Name of the job.
        run: The run directory.
        make: Function that returns a new tracker.
    """

    def __init__(self, job: str, run: RunDirectory, make: Callable[[TrackedRun], Tracker]) -> None:
        self._job = job
        self._run = run
        self._make = make
        self._history = History(keep_results=False, keep_weights=False, note_lines_of=KINDS)
        self._end = 0
        self._points: Points | None = None

    def catch_up(self) -> None:
        """Give the tracker what the journal has by now.

        Raises:
            OSError: The journal cannot be read.
            SimulationError: It was changed while it was read.
            ValueError: It is damaged.
            Exception: Whatever the tracker raises.
        """
        # Of a run that goes on, all is read before anything is told: a later resume may void it.
        is_void = self._points is None
        for event, start, end in new_events(self._run.events, self._end):
            known = self._history.line_count
            self._history.apply(event, start)
            self._end = end
            is_void = is_void or isinstance(event, RunResumed) or self._history.line_count < known
            if not is_void:
                self._tell(event, start, known)
        if is_void and not self._history.is_empty:
            self._begin_anew()
        if self._points is not None:
            self._points.flush()

    def close(self) -> None:
        """Give the tracker all that is left, as the run is over, and close it."""
        self.catch_up()
        if self._points is not None:
            self._points.close()
            self._points = None

    def _begin_anew(self) -> None:
        if self._points is not None:
            self._points.close()
        began = self._history.timeline.sittings[0][0]
        tracker = self._make(TrackedRun(self._job, self._run.path, began))
        self._points = Points(tracker, self._run.memory)
        for event in read_events(self._run.events, self._history.lines):
            self._points.apply(event)

    def _tell(self, event: AnyEvent, start: int, known: int) -> None:
        """Give the tracker an event, and those before it that count again through it."""
        assert self._points is not None
        offsets = self._history.lines_after(known)
        for each in [event] if offsets == [start] else read_events(self._run.events, offsets):
            self._points.apply(each)
