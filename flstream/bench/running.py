"""Runs of a bench: a job run once in a temporary folder, followed by its events."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from flstream.bench.measurement import RunMoments
from flstream.bench.schedule import RunShare
from flstream.errors import AbortedError, SimulationError, UsageError
from flstream.job import Job
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import Summary
from flstream.simulation.interruption import undisturbed
from flstream.simulation.launcher import simulate
from flstream.telemetry.events import (
    AnyEvent,
    ProcessReady,
    Progress,
    RoundFinished,
    RoundStarted,
)
from flstream.telemetry.memory import MemorySampler


class RunListener:
    """Listener of a run that reports its progress and notes what the summary lacks.

    Args:
        report: function called with the seconds since the run began and the share of it that is
            done, from 0 to 1.
        share: computation of that share.

    Attributes:
        moments: times at which the run's processes were idle.
        last_round: end of the last round that has ended; None before the first.
    """

    def __init__(self, report: Callable[[float, float], None], share: RunShare) -> None:
        self._report_to = report
        self._share = share
        self._began = time.monotonic()
        self.moments = RunMoments({})
        self.last_round: RoundFinished | None = None
        self._report()

    def __call__(self, event: AnyEvent, sampler: MemorySampler) -> None:
        """Handle an event of the run."""
        match event:
            case ProcessReady():
                self.moments.ready[event.process] = event.time
            case RoundStarted():
                self.moments.first_round = self.moments.first_round or event.time
                self._share.round_began()
            case Progress():
                self._share.moved(sum(event.down.values()), sum(event.up.values()))
            case RoundFinished():
                self.last_round = event
                self._share.round_ended()
        self._report()

    def _report(self) -> None:
        elapsed = time.monotonic() - self._began
        self._report_to(elapsed, self._share.share(elapsed))


@contextmanager
def finished_run(
    job: Job, folder: Path, listener: RunListener
) -> Iterator[tuple[Summary, RunDirectory]]:
    """Run a job in a temporary run directory, which is removed at the end of the block.

    Args:
        job: the job.
        folder: folder for the run directory.
        listener: listener of the run.

    Yields:
        The summary of the run, and its directory.

    Raises:
        AbortedError: Ctrl-C stopped the run.
        SimulationError: the run failed.
    """
    path = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
    run = RunDirectory.create("exchange", path)
    try:
        summary = simulate(job, run, listener)
        if summary.status == "stopped":
            raise AbortedError("the bench was stopped")
        if summary.status == "failed":
            raise SimulationError(str(summary.error))
        yield summary, run
    finally:
        with undisturbed():
            shutil.rmtree(path)


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Create a temporary folder in ``folder``, and remove it at the end of the block.

    ``folder`` is created if it does not exist, and then removed too if it is empty.

    Raises:
        UsageError: They cannot be created.
    """
    with ExitStack() as stack:
        # A signal is delayed until the removal of both folders is registered.
        with undisturbed():
            made = not folder.exists()
            try:
                folder.mkdir(parents=True, exist_ok=True)
                work = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
            except OSError as error:
                raise UsageError(
                    f"the folder {folder.absolute()} cannot be written: {error.strerror}; begin "
                    "the bench in another"
                ) from error
            stack.callback(_remove, work, folder if made else None)
        yield work


def _remove(work: Path, folder: Path | None) -> None:
    with undisturbed():
        shutil.rmtree(work)
        if folder is not None and not any(folder.iterdir()):
            folder.rmdir()
