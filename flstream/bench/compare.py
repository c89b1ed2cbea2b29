"""Comparison of cases: runs of the exchange job in each of them, beside the machine's limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flstream.bench.exchange import fits
from flstream.bench.limits import MachineLimits, measure_limits, median_limits
from flstream.bench.measurement import (
    Measurement,
    Trace,
    figures,
    read_samples,
    trace,
)
from flstream.bench.plan import Case, Plan
from flstream.bench.running import CaseResult, CaseRunner, FinishedRun, temporary_folder
from flstream.bench.schedule import RunShare, Schedule, Step, Watcher
from flstream.simulation.forecasting.fitting import available_in

# Bytes a read of the bare pipe where no case has chunks.
_READ_SIZE = 2 << 20
_MEASURING = "what this machine can do"


@dataclass
class Result(CaseResult[Case, Measurement]):
    """Predicted needs and measured figures of a case.

    Attributes:
        trace: memory over time in the first run.
    """

    trace: Trace | None = None


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
        available = available_in(work)
        results = [
            Result(case, plan.label(case), plan.need(case), available) for case in plan.cases
        ]
        fitting = [each for each in results if fits(each.need, available)]
        limits = _run_all(plan, fitting, work, watcher) if fitting else []
        return Comparison(limits, results)


def _run_all(
    plan: Plan, results: Sequence[Result], work: Path, watcher: Watcher
) -> list[MachineLimits]:
    """Run the cases as often as the plan repeats them; return the limits before each repetition."""
    watcher.stepped(Step(_MEASURING, 0, 0, 0.0, None))
    limits = [_limits(plan, work)]
    expected = {each.case: plan.expected_seconds(each.case, limits[0]) for each in results}
    schedule = Schedule(expected, [*expected] * plan.repeat)
    runner = CaseRunner(schedule, work, watcher)
    watcher.planned(len(schedule.runs), schedule.total())
    for number in range(1, plan.repeat + 1):
        if number > 1 and len(schedule.taken) < len(schedule.runs):
            watcher.stepped(schedule.step(_MEASURING, 0.0, 0.0))
            limits.append(_limits(plan, work))
        for result in results:
            share = RunShare(plan.moved_bytes, schedule.seconds(result.case))
            job, which = plan.job(result.case), f"run {number} of {plan.repeat}"
            runner.take(result, which, job, share, partial(_measure, result))
    return limits


def _limits(plan: Plan, work: Path) -> MachineLimits:
    sizes = [case.chunk_size for case in plan.cases if case.chunk_size is not None]
    return measure_limits(list(dict.fromkeys(sizes)) or [_READ_SIZE], plan.model_bytes, work)


def _measure(result: Result, run: FinishedRun) -> Measurement:
    """Return the figures of a run, whose memory over time is kept if it is the first."""
    samples, summary = read_samples(run.directory.memory), run.summary
    if result.trace is None:
        result.trace = trace(summary, samples, run.began)
    return figures(summary, samples, run.ready)
