"""Thread of the launcher that feeds a run's tracker."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from flstream.debugging import code_failed, waiting
from flstream.errors import AbortedError
from flstream.job.code import check, make
from flstream.job.sections import TrackingSection
from flstream.runs.run_directory import RunDirectory
from flstream.tracking.feed import TrackerFeed
from flstream.tracking.tracker import TrackedRun, Tracker
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
        tracker: Tracker = make(self._tracking.place, self._tracking.args, run)
        check(tracker, f"tracking.type {self._tracking.name}", Tracker)
        return tracker
