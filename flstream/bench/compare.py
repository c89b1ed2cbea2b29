"""Runs the exchange job in one case after another, beside the machine's limits."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flstream.bench.limits import Limits, measure_limits, median_limits
from flstream.bench.measurement import (
    Measurement,
    Moments,
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
from flstream.simulator.files.run_directory import RunDirectory
from flstream.simulator.forecasting.fitting import Available, available_in
from flstream.simulator.interruption import undisturbed
from flstream.simulator.launcher import simulate
from flstream.telemetry.events import (
    AnyEvent,
    ProcessReady,
    Progress,
    RoundFinished,
    RoundStarted,
)
from flstream.telemetry.memory import MemorySampler

# The pipe's reads where no case has chunks.
_READ_SIZE = 2 << 20
_MEASURING = "what this machine can do"


@dataclass
class Result:
    """One case: what it was predicted to need, and what came of it.

    Attributes:
        case: the case.
        label: what it is called.
        need: what it was predicted to need.
        available: what this machine had before it began; or where it could not be repeated, then.
        runs: each run's figures; none where there was no room for it, so that it was not run.
        trace: memory over time in the first of them.
        failure: why a run failed; it is not tried again.
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
        """The median of each figure over the runs, or None if there are none."""
        return median(self.runs) if self.runs else None


@dataclass(frozen=True)
class Comparison:
    """What a bench found.

    Attributes:
        limits: what the machine could do, measured before each repetition; nothing where there
            was room for no case.
        results: of each case, in the order of the plan.
    """

    limits: Sequence[Limits]
    results: Sequence[Result]

    @property
    def median_limits(self) -> Limits | None:
        """The median of each limit, or None if there are none."""
        return median_limits(self.limits) if self.limits else None


def compare(plan: Plan, folder: Path, watcher: Watcher) -> Comparison:
    """Measure each case, alternating between them.

    A case for which there is not enough memory or disk is not run. One that fails is not repeated.

    Args:
        plan: what to measure.
        folder: where the run directories go while they are needed, on the disk to be measured.
        watcher: told how far it is.

    Raises:
        AbortedError: Ctrl-C stopped a run.
        KeyboardInterrupt: Ctrl-C came between two.
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
        """Do all of it."""
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

    def _limits(self, step: Step) -> Limits:
        self._watcher.stepped(step)
        sizes = [case.chunk_size for case in self._plan.cases if case.chunk_size is not None]
        nbytes = self._plan.model_bytes
        return measure_limits(list(dict.fromkeys(sizes)) or [_READ_SIZE], nbytes, self._work)

    def _take(self, case: Case, which: str) -> None:
        """One run of a case, if it still can be."""
        result = self._results[case]
        if result.failure is not None:
            return
        available = available_in(self._work)
        still_fits = fits(result.need, available)
        if not result.runs or not still_fits:
            result.available = available
        if not still_fits:
            # Something else has taken it since the bench began.
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

    def tell(self, text: str, elapsed: float, share: float) -> None:
        """Say how far the run under way is."""
        self._watcher.stepped(self._step(text, elapsed, share))


class _Listener:
    """Follows a run: for how far it is, and for when its processes were idle."""

    def __init__(self, bench: _Bench, text: str, share: RunShare) -> None:
        self._bench = bench
        self._text = text
        self._share = share
        self._began = time.monotonic()
        self.moments = Moments({})
        self._tell()

    def __call__(self, event: AnyEvent, sampler: MemorySampler) -> None:
        """Take one event."""
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
        self._tell()

    def _tell(self) -> None:
        elapsed = time.monotonic() - self._began
        self._bench.tell(self._text, elapsed, self._share.share(elapsed))


@contextmanager
def _folder(folder: Path) -> Iterator[Path]:
    """A folder of the bench's own in ``folder``, which is gone again afterwards.

    ``folder`` goes, too, if it was not there before and is empty.
    """
    with ExitStack() as stack:
        # A signal that comes meanwhile takes effect when all is set for taking them away again.
        with undisturbed():
            made = not folder.exists()
            folder.mkdir(parents=True, exist_ok=True)
            work = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
            stack.callback(_take_away, work, folder if made else None)
        yield work


def _take_away(work: Path, folder: Path | None) -> None:
    with undisturbed():
        shutil.rmtree(work)
        if folder is not None and not any(folder.iterdir()):
            folder.rmdir()
