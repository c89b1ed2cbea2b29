"""The process of a run's tracker, and the launcher's hold on it.

The process reads the journal whenever it is woken, so it never keeps the run waiting; and a tracker
that raises ends nothing but itself.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from flstream.debugging import code_failed, waiting
from flstream.engines.processes import ProcessHost
from flstream.job.code import check, make
from flstream.job.tracking import TrackingSection
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.child import end_with_peer, ignore_interrupts, redirect_output
from flstream.telemetry.memory import MemorySampler
from flstream.text import signal_name
from flstream.tracking.feed import TrackerFeed
from flstream.tracking.tracker import TrackedRun, Tracker

TRACKER = "tracker"

# Time for the tracker to take the last points once the run is over.
_FINISH_SECONDS = 60.0
# Time for its process to end after it has closed its socket.
_EXIT_SECONDS = 2.0
# The run goes first where there are few cores.
_NICE = 5
_WAKE_BYTES = 4096
_MOST_REPORT_BYTES = 1 << 16


def tracker_main(
    tracking: TrackingSection,
    job: str,
    run: RunDirectory,
    wake: socket.socket,
    report: socket.socket,
) -> None:
    """The process: feed the tracker until the launcher says that the run is over.

    Args:
        tracking: Section of the job that names the tracker.
        job: Name of the job.
        run: The run directory.
        wake: Where the launcher writes when there are new events; its end is the run's.
        report: Takes a sentence if the tracker fails.
    """
    ignore_interrupts()
    redirect_output(run.log(TRACKER))
    # A run that was killed goes on with another tracker: there must not be two.
    end_with_peer(report)
    os.nice(_NICE)
    try:
        feed = TrackerFeed(job, run, lambda tracked: _made(tracking, tracked))
        while _is_woken(wake):
            feed.catch_up()
        feed.close()
    except (Exception, SystemExit) as error:
        code_failed(error)
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        report.sendall(f"{tracking.name} raised {reason}".encode()[:_MOST_REPORT_BYTES])


def _is_woken(wake: socket.socket) -> bool:
    with waiting():
        return bool(wake.recv(_WAKE_BYTES))


def _made(tracking: TrackingSection, tracked: TrackedRun) -> Tracker:
    assert tracking.place is not None
    tracker: Tracker = make(tracking.place, tracking.args, tracked)
    check(tracker, f"tracking.type {tracking.name}", Tracker)
    return tracker


class TrackerProcess:
    """The launcher's hold on the process of a tracker.

    Args:
        wake: Where the process is woken.
        report: Where it reports a failure.
        name: Name of the tracker, for messages.
        host: Host of the process.
    """

    def __init__(
        self, wake: socket.socket, report: socket.socket, name: str, host: ProcessHost
    ) -> None:
        self._wake = wake
        self._report = report
        self._name = name
        self._host = host
        wake.setblocking(False)

    @classmethod
    def start(
        cls,
        tracking: TrackingSection,
        job: str,
        run: RunDirectory,
        host: ProcessHost,
        sampler: MemorySampler,
    ) -> Self:
        """Start the process.

        Args:
            tracking: Section of the job that names the tracker.
            job: Name of the job.
            run: The run directory.
            host: Host of the run's processes.
            sampler: Sampler of their memory.
        """
        (wake, its_wake), (report, its_report) = socket.socketpair(), socket.socketpair()
        with its_wake, its_report:
            process = f"{__name__}:tracker_main"
            pid = host.start(TRACKER, process, tracking, job, run, its_wake, its_report)
        sampler.watch(TRACKER, pid)
        return cls(wake, report, tracking.name, host)

    def wake(self) -> None:
        """Let the tracker know of new events in the journal."""
        # It is busy and will look again, or it has failed, which it has reported.
        with suppress(OSError):
            self._wake.send(b"w")

    def finish(self) -> Sequence[str]:
        """Let the tracker take the last points, and wait for its end.

        Returns:
            A warning if it has failed; else nothing.
        """
        with suppress(OSError):
            self._wake.shutdown(socket.SHUT_WR)
        failure = self._failure()
        return [f"tracking has ended early: {failure}"] if failure else []

    def close(self) -> None:
        """End the process, if it still runs."""
        self._wake.close()
        self._report.close()

    def _failure(self) -> str:
        """Why the tracker failed; empty if it did not."""
        deadline = time.monotonic() + _FINISH_SECONDS
        parts = []
        try:
            while True:
                self._report.settimeout(max(deadline - time.monotonic(), 0.001))
                if not (part := self._report.recv(_MOST_REPORT_BYTES)):
                    break
                parts.append(part)
        except TimeoutError:
            return f"{self._name} did not take the last points within {_FINISH_SECONDS:.0f} s"
        except OSError as error:
            return f"{self._name} cannot be reached: {error.strerror}"
        if parts:
            return f"{b''.join(parts).decode(errors='replace')}; see {TRACKER}.log"
        code = self._host.exit_code(TRACKER, _EXIT_SECONDS)
        if code is not None and code < 0:
            return f"its process was killed by {signal_name(-code)}"
        return f"its process ended with status {code}; see {TRACKER}.log" if code else ""
