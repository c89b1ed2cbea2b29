"""Runs of a bench's cases, one after another, each in a temporary folder."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NamedTuple

from flstream.bench.exchange import Need, fits
from flstream.bench.measurement import FiguresT, median
from flstream.bench.schedule import CaseT, RunShare, Schedule, Watcher
from flstream.errors import AbortedError, SimulationError, UsageError
from flstream.job import Job
from flstream.runs.history import History
from flstream.runs.journal import Journal, read_history
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import Summary
from flstream.simulation.forecasting.fitting import Available, available_in
from flstream.simulation.interruption import undisturbed
from flstream.simulation.launcher import Listener, simulate
from flstream.telemetry.events import AnyEvent, ProcessReady
from flstream.telemetry.memory import MemorySampler


class FinishedRun(NamedTuple):
    """A run that has finished, while its directory is there.

    Attributes:
        directory: its directory.
        summary: its summary.
        history: its history, with the lines of its journal that say when processes were ready.
    """

    directory: RunDirectory
    summary: Summary
    history: History

    @property
    def began(self) -> float:
        """Time at which the first round began, in seconds since the epoch."""
        return self.history.timeline.spans[0].begin

    @property
    def ready(self) -> Mapping[str, float]:
        """Times at which processes had done their imports, by name, in seconds since the epoch."""
        events = (line.event for line in Journal(self.directory.events) if line.counts)
        return {event.process: event.time for event in events if isinstance(event, ProcessReady)}


@dataclass
class CaseResult(Generic[CaseT, FiguresT]):
    """What comes of a case, filled in by its runs.

    Attributes:
        case: the case.
        label: name of the case in tables.
        need: predicted memory and disk of a run, in bytes.
        available: memory and disk of this machine before the first run, or before the run that
            had no room any more.
        runs: figures of each run; empty if there was no room for the case.
        failure: reason why a run failed, after which the case is not run again; None if none did.
    """

    case: CaseT
    label: str
    need: Need
    available: Available
    runs: list[FiguresT] = field(default_factory=list)
    failure: str | None = None

    @property
    def median(self) -> FiguresT | None:
        """Median of each figure over the runs; None without runs."""
        return median(self.runs) if self.runs else None


@dataclass(frozen=True)
class CaseRunner(Generic[CaseT]):
    """Runs of a bench's cases.

    Attributes:
        schedule: all runs, with the times of those that have ended.
        work: folder for the run directories.
        watcher: receiver of the progress.
    """

    schedule: Schedule[CaseT]
    work: Path
    watcher: Watcher

    def take(
        self,
        result: CaseResult[CaseT, FiguresT],
        which: str,
        job: Job,
        share: RunShare,
        measure: Callable[[FinishedRun], FiguresT],
    ) -> None:
        """Run a case once, unless it has failed before or has no room any more.

        Args:
            result: what comes of the case.
            which: which of its runs it is, for the progress.
            job: the job that it runs.
            share: computation of the share of the run that is done.
            measure: returns the figures of the run, whose directory is removed after that.

        Raises:
            AbortedError: Ctrl-C stopped the run.
        """
        if result.failure is not None:
            return
        available = available_in(self.work)
        has_room = fits(result.need, available)
        if not result.runs or not has_room:
            result.available = available
        if not has_room:
            # Other processes have taken the memory or disk since the bench began.
            self.schedule.drop(result.case)
            return
        began = time.monotonic()

        def step() -> None:
            elapsed = time.monotonic() - began
            text = f"{result.label}, {which}"
            self.watcher.stepped(self.schedule.step(text, elapsed, share.share(elapsed)))

        def listen(event: AnyEvent, sampler: MemorySampler) -> None:
            share.apply(event)
            step()

        step()
        try:
            with _finished_run(job, self.work, listen) as run:
                figures = measure(run)
        except SimulationError as error:
            result.failure = str(error)
            self.schedule.drop(result.case)
            return
        self.schedule.taken.append(time.monotonic() - began)
        result.runs.append(figures)


@contextmanager
def _finished_run(job: Job, folder: Path, listener: Listener) -> Iterator[FinishedRun]:
    """Run a job in a temporary run directory, which is removed at the end of the block.

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
        yield FinishedRun(run, summary, read_history(run.events))
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
