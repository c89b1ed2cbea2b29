"""Comparison of cases: runs of the exchange job in each of them, beside the machine's limits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flstream.bench.limits import MachineLimits, measure_limits, median_limits
from flstream.bench.measurement import (
    Measurement,
    Trace,
    figures,
    median,
    read_samples,
    trace,
)
from flstream.bench.needs import Need, fits, predict
from flstream.bench.plan import Case, Plan
from flstream.bench.running import RunListener, finished_run, temporary_folder
from flstream.bench.schedule import RunShare, Schedule, Step, Watcher, expected_seconds
from flstream.errors import SimulationError
from flstream.simulation.forecasting.fitting import Available, available_in

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
    with temporary_folder(folder) as work:
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
                limits.append(self._limits(self._schedule.step(_MEASURING, 0.0, 0.0)))
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
        share = RunShare(self._plan.moved_bytes, self._schedule.seconds(case))

        def report(elapsed: float, done: float) -> None:
            self._watcher.stepped(self._schedule.step(text, elapsed, done))

        listener = RunListener(report, share)
        with finished_run(self._plan.job(case), self._work, listener) as (summary, run):
            samples, moments = read_samples(run.memory), listener.moments
            return figures(summary, samples, moments), trace(summary, samples, moments)
