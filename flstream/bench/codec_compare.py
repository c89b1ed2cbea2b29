"""Comparison of codecs: the exchange run with each list of them, beside the one without."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from flstream.bench.codec_cases import CodecCase
from flstream.bench.codec_error import PlainModels, RelativeError
from flstream.bench.codec_plan import CodecBenchPlan
from flstream.bench.needs import Need, fits, need_of
from flstream.bench.running import RunListener, finished_run, temporary_folder
from flstream.bench.schedule import RunShare, Schedule, Watcher
from flstream.errors import SimulationError
from flstream.runs.summary import Summary
from flstream.simulation.forecasting.fitting import Available, available_in
from flstream.telemetry.events import RoundFinished


@dataclass(frozen=True)
class CodecMeasurement:
    """Figures of the measured round of one run; bytes are those of one client.

    Attributes:
        down_bytes: bytes that moved for the model.
        up_bytes: bytes that moved for the update.
        download: seconds until every client had the model.
        train: seconds from then until the last update was ready, which is encoded by then where
            its codec leaves numbers out.
        upload_and_fold: seconds until every update was folded.
        checkpoint: seconds until the next model was durable.
        wall_seconds: seconds of the whole run, from its first process to its last.
    """

    down_bytes: float
    up_bytes: float
    download: float
    train: float
    upload_and_fold: float
    checkpoint: float
    wall_seconds: float

    @property
    def round_seconds(self) -> float:
        """Seconds of the whole round."""
        return self.download + self.train + self.upload_and_fold + self.checkpoint

    @property
    def moved_bytes(self) -> float:
        """Bytes that moved in both directions."""
        return self.down_bytes + self.up_bytes


@dataclass
class CodecResult:
    """Predicted needs and measured figures of a case.

    Attributes:
        case: the case.
        need: predicted memory and disk of a run, in bytes.
        available: memory and disk of this machine before the case.
        runs: figures of each run; empty if there was no room for the case.
        error: what was lost of the updates, which is the same in every run; None without runs.
        failure: reason why a run failed, after which the case is not run again; None if none did.
    """

    case: CodecCase
    need: Need
    available: Available
    runs: list[CodecMeasurement] = field(default_factory=list)
    error: RelativeError | None = None
    failure: str | None = None

    @property
    def label(self) -> str:
        """Name of the case in tables."""
        return self.case.name

    @property
    def median(self) -> CodecMeasurement | None:
        """Median of each figure over the runs; None without runs."""
        if not self.runs:
            return None
        rows = [asdict(run) for run in self.runs]
        names = [each.name for each in fields(CodecMeasurement)]
        return CodecMeasurement(*(statistics.median(row[name] for row in rows) for name in names))


def compare_codecs(plan: CodecBenchPlan, folder: Path, watcher: Watcher) -> Sequence[CodecResult]:
    """Measure all cases of a plan, as often as it repeats them.

    A case for which there is not enough memory or disk is not run. One that fails is not repeated.

    Args:
        plan: the cases, and how often to run each.
        folder: folder for the temporary run directories.
        watcher: receiver of the progress.

    Returns:
        The results of all cases, in the order of the plan.

    Raises:
        SimulationError: the exchange without codecs failed, with which all others are compared.
        AbortedError: Ctrl-C stopped a run.
        KeyboardInterrupt: Ctrl-C came between two runs.
    """
    with temporary_folder(folder) as work:
        return _CodecBench(plan, work, watcher).compare()


class _CodecBench:
    def __init__(self, plan: CodecBenchPlan, work: Path, watcher: Watcher) -> None:
        self._plan = plan
        self._work = work
        self._watcher = watcher
        self._plain: PlainModels | None = None
        expected = {case: plan.expected_seconds(case) for case in plan.cases}
        self._schedule = Schedule(expected, [*plan.cases] * plan.repeat)
        self._results = [
            CodecResult(case, self._need(case), available_in(work)) for case in plan.cases
        ]

    def compare(self) -> Sequence[CodecResult]:
        """Run the cases, the one without codecs first."""
        self._watcher.planned(len(self._schedule.runs), self._schedule.total())
        for number in range(1, self._plan.repeat + 1):
            for result in self._results:
                self._take(result, f"run {number} of {self._plan.repeat}")
        return self._results

    def _need(self, case: CodecCase) -> Need:
        plan = self._plan
        # The plain run's initial and final model are kept beside the run that is compared.
        kept = 2 * plan.measured_bytes
        return need_of(plan.job(case), plan.measured_bytes, plan.tensors, kept)

    def _take(self, result: CodecResult, which: str) -> None:
        """Run a case once, unless it has failed before or has no room."""
        if result.failure is not None:
            return
        result.available = available_in(self._work)
        has_reference = result.case.is_plain or self._plain is not None
        if not has_reference or not fits(result.need, result.available):
            self._schedule.drop(result.case)
            return
        began = time.monotonic()
        try:
            measured = self._run(result, f"{result.label}, {which}")
        except SimulationError as error:
            if result.case.is_plain:
                raise SimulationError(f"the exchange without codecs failed: {error}") from error
            result.failure = str(error)
            self._schedule.drop(result.case)
            return
        self._schedule.taken.append(time.monotonic() - began)
        result.runs.append(measured)

    def _run(self, result: CodecResult, text: str) -> CodecMeasurement:
        plan, case = self._plan, result.case
        linked = plan.link_seconds(case)
        down_part = linked.down / sum(linked) if sum(linked) else 0.5
        share = RunShare(plan.moved_bytes, self._schedule.seconds(case), down_part)

        def report(elapsed: float, done: float) -> None:
            self._watcher.stepped(self._schedule.step(text, elapsed, done))

        listener = RunListener(report, share)
        with finished_run(plan.job(case), self._work, listener) as (summary, run):
            if self._plain is None:
                self._plain = PlainModels(self._work, run, summary)
                result.error = RelativeError(True, 0.0)
            elif result.error is None:
                result.error = self._plain.error_of(run, summary)
            assert listener.last_round is not None  # the run has finished
            return _figures(plan, summary, listener.last_round)


def _figures(plan: CodecBenchPlan, summary: Summary, last_round: RoundFinished) -> CodecMeasurement:
    return CodecMeasurement(
        down_bytes=last_round.down.bytes / plan.clients,
        up_bytes=last_round.up.bytes / plan.clients,
        download=last_round.download,
        train=last_round.train,
        upload_and_fold=last_round.upload_and_fold,
        checkpoint=last_round.checkpoint,
        wall_seconds=summary.wall_seconds,
    )
