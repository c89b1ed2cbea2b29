"""Comparison of cases: runs of the exchange job in each of them, beside the machine's limits."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flstream.bench.limits import MachineLimits, measure_limits, median_limits
from flstream.bench.measurement import (
    Measurement,
    RunMoments,
    Trace,
    figures,
    median,
    read_samples,
    trace,
)
from flstream.bench.needs import Need, fits, predict
from flstream.bench.plan import Case, Plan
from flstream.bench.schedule import RunShare, Schedule, Step, Watcher, expected_seconds
from flstream.errors import AbortedError, SimulationError
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.forecasting.fitting import Available, available_in
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

# Bytes a read of the bare pipe where no case has chunks.
_READ_SIZE = 2 << 20
_MEASURING = "what this machine can do"


@dataclass
class Result:
    """Predicted needs and measured figures of a case.

    Attributes:
        case: the case.
        label: name of the case in tables.
        need: predicted memory and disk of a run, in bytes.
        available: memory and disk of this machine before the first run, or before the run that
            had no room any more.
        runs: figures of each run; empty if there was no room for the case.
        trace: memory over time in the first run.
        failure: reason why a run failed, after which the case is not run again; None if none did.
    """

    case: Case
    label: str
    need: Need
    available: Available
    runs: list[Measurement] = field(default_factory=list)
    trace: Trace | None = None
    failure: str | None = None

    @property
    def median(self) -> Measurement | None:
        """Median of each figure over the runs; None without runs."""
        return median(self.runs) if self.runs else None


@dataclass(frozen=True)
class Comparison:
    """Results of a bench.

    Attributes:
        limits: limits of the machine, measured before each repetition; empty if no case had room.
        results: results of all cases, in the order of the plan.
    """

    limits: Sequence[MachineLimits]
    results: Sequence[Result]

    @property
    def median_limits(self) -> MachineLimits | None:
        """Median of each limit; None if none were measured."""
        return median_limits(self.limits) if self.limits else None


def compare(plan: Plan, folder: Path, watcher: Watcher) -> Comparison:
    """Measure all cases of a plan, alternating between them.

    A case for which there is not enough memory or disk is not run. One that fails is not repeated.

    Args:
        plan: the cases, and how often to run each.
        folder: folder for the temporary run directories, on the disk to be measured.
        watcher: receiver of the progress.

    Returns:
        The machine's limits, and the results of all cases.

    Raises:
        AbortedError: Ctrl-C stopped a run.
        KeyboardInterrupt: Ctrl-C came between two runs.
    """
    with _folder(folder) as work:
        return _Bench(plan, work, watcher).compare()


class _Bench:
    def __init__(self, plan: Plan, work: Path, watcher: Watcher) -> None:
        self._plan = plan
        self._work = work
        self._watcher = watcher
        available = available_in(work)
        self._results = {
            case: Result(case, plan.label(case), predict(plan, case), available)
            for case in plan.cases
        }

    def compare(self) -> Comparison:
        """Measure the limits and run the cases, as often as the plan repeats them."""
        plan = self._plan
        fitting = [case for case, each in self._results.items() if fits(each.need, each.available)]
        if not fitting:
            return Comparison([], list(self._results.values()))
        limits = [self._limits(Step(_MEASURING, 0, 0, 0.0, None))]
        expected = {case: expected_seconds(plan, case, limits[0]) for case in fitting}
        self._schedule = Schedule(expected, fitting * plan.repeat)
        self._watcher.planned(len(self._schedule.runs), self._schedule.total())
        for number in range(1, plan.repeat + 1):
            if number > 1 and len(self._schedule.taken) < len(self._schedule.runs):
                limits.append(self._limits(self._step(_MEASURING, 0.0, 0.0)))
            for case in fitting:
                self._take(case, f"run {number} of {plan.repeat}")
        return Comparison(limits, list(self._results.values()))

    def _limits(self, step: Step) -> MachineLimits:
        self._watcher.stepped(step)
        sizes = [case.chunk_size for case in self._plan.cases if case.chunk_size is not None]
        nbytes = self._plan.model_bytes
        return measure_limits(list(dict.fromkeys(sizes)) or [_READ_SIZE], nbytes, self._work)

    def _take(self, case: Case, which: str) -> None:
        """Run a case once, unless it has failed before or has no room any more."""
        result = self._results[case]
        if result.failure is not None:
            return
        available = available_in(self._work)
        still_fits = fits(result.need, available)
        if not result.runs or not still_fits:
            result.available = available
        if not still_fits:
            # Other processes have taken the memory or disk since the bench began.
            self._schedule.drop(case)
            return
        began = time.monotonic()
        try:
            measured, traced = self._run(case, f"{result.label}, {which}")
        except SimulationError as error:
            result.failure = str(error)
            self._schedule.drop(case)
            return
        self._schedule.taken.append(time.monotonic() - began)
        result.runs.append(measured)
        result.trace = result.trace or traced

    def _run(self, case: Case, text: str) -> tuple[Measurement, Trace]:
        listener = _Listener(self, text, RunShare(self._plan, self._schedule.seconds(case)))
        path = Path(tempfile.mkdtemp(prefix="run-", dir=self._work))
        run = RunDirectory.create("exchange", path)
        try:
            summary = simulate(self._plan.job(case), run, listener)
            if summary.status == "stopped":
                raise AbortedError("the bench was stopped")
            if summary.status == "failed":
                raise SimulationError(str(summary.error))
            samples, moments = read_samples(run.memory), listener.moments
            measured = figures(summary, samples, moments)
            return measured, trace(summary, samples, moments)
        finally:
            with undisturbed():
                shutil.rmtree(path)

    def _step(self, text: str, elapsed: float, share: float) -> Step:
        schedule = self._schedule
        total = schedule.total()
        left = schedule.left(elapsed, share)
        done = sum(schedule.taken) + elapsed
        whole = done + left
        number = min(len(schedule.taken) + 1, len(schedule.runs))
        return Step(text, number, len(schedule.runs), done / whole if total else 1.0, left)

    def report(self, text: str, elapsed: float, share: float) -> None:
        """Pass the progress of the current run to the watcher.

        Args:
            text: description of the run.
            elapsed: seconds since the run began.
            share: share of the run that is done, from 0 to 1.
        """
        self._watcher.stepped(self._step(text, elapsed, share))


class _Listener:
    """Listener of a run that reports its progress and notes when its processes were idle."""

    def __init__(self, bench: _Bench, text: str, share: RunShare) -> None:
        self._bench = bench
        self._text = text
        self._share = share
        self._began = time.monotonic()
        self.moments = RunMoments({})
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
                self._share.round_ended()
        self._report()

    def _report(self) -> None:
        elapsed = time.monotonic() - self._began
        self._bench.report(self._text, elapsed, self._share.share(elapsed))


@contextmanager
def _folder(folder: Path) -> Iterator[Path]:
    """Create a temporary folder in ``folder``, and remove it at the end of the block.

    ``folder`` is created if it does not exist, and then removed too if it is empty.
    """
    with ExitStack() as stack:
        # A signal is delayed until the removal of both folders is registered.
        with undisturbed():
            made = not folder.exists()
            folder.mkdir(parents=True, exist_ok=True)
            work = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
            stack.callback(_remove, work, folder if made else None)
        yield work


def _remove(work: Path, folder: Path | None) -> None:
    with undisturbed():
        shutil.rmtree(work)
        if folder is not None and not any(folder.iterdir()):
            folder.rmdir()
