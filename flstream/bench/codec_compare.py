"""Comparison of codecs: the exchange run with each list of them, beside the one without."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from flstream.bench.codec_cases import CodecCase
from flstream.bench.codec_plan import CodecBenchPlan
from flstream.bench.exchange import ROUNDS
from flstream.bench.running import CaseResult, CaseRunner, FinishedRun, temporary_folder
from flstream.bench.schedule import RunShare, Schedule, Watcher
from flstream.errors import SimulationError
from flstream.inspection.difference import find_difference
from flstream.model.checkpoint import FileSource
from flstream.simulation.forecasting.fitting import available_in


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


class RelativeError(NamedTuple):
    """What codecs have lost of all updates of a run.

    Attributes:
        exact: whether the final models have the same digest.
        relative: L2 norm of the final model less the plain run's, divided by that of the plain
            run's less the initial one.
    """

    exact: bool
    relative: float


@dataclass
class CodecResult(CaseResult[CodecCase, CodecMeasurement]):
    """Predicted needs and measured figures of a case.

    Attributes:
        error: what was lost of the updates, which is the same in every run; None without runs.
    """

    error: RelativeError | None = None


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
        available = available_in(work)
        results = [CodecResult(case, case.name, plan.need(case), available) for case in plan.cases]
        expected = {case: plan.expected_seconds(case) for case in plan.cases}
        runner = CaseRunner(Schedule(expected, [*plan.cases] * plan.repeat), work, watcher)
        _run_all(plan, results, runner)
        return results


def _run_all(
    plan: CodecBenchPlan, results: Sequence[CodecResult], runner: CaseRunner[CodecCase]
) -> None:
    """Run the cases as often as the plan repeats them, the one without codecs first."""
    schedule, plain = runner.schedule, PlainModel(runner.work)
    runner.watcher.planned(len(schedule.runs), schedule.total())
    for number in range(1, plan.repeat + 1):
        for result in results:
            case = result.case
            if not (case.is_plain or plain.is_there):
                schedule.drop(case)
                continue
            linked = plan.link_seconds(case)
            down_part = linked.down / sum(linked) if sum(linked) else 0.5
            share = RunShare(plan.measured.moved_bytes, schedule.seconds(case), down_part)
            measure = partial(_measure, plan, plain, result)
            runner.take(result, f"run {number} of {plan.repeat}", plan.job(case), share, measure)
            if case.is_plain and result.failure is not None:
                raise SimulationError(f"the exchange without codecs failed: {result.failure}")


def _measure(
    plan: CodecBenchPlan, plain: PlainModel, result: CodecResult, run: FinishedRun
) -> CodecMeasurement:
    """Return the figures of a run, whose final model is compared if it is the first of its case."""
    if not plain.is_there:
        plain.keep(run)
    if result.error is None:
        result.error = plain.error_of(run)
    last = run.history.rounds[-1]
    return CodecMeasurement(
        down_bytes=last.down.bytes / plan.clients,
        up_bytes=last.up.bytes / plan.clients,
        download=last.download,
        train=last.train,
        upload_and_fold=last.upload_and_fold,
        checkpoint=last.checkpoint,
        wall_seconds=run.summary.wall_seconds,
    )


class PlainModel:
    """The final model of a run without codecs, kept while others are compared with it.

    Args:
        folder: folder for its file, on the disk of the run directories.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "plain.safetensors"
        self._digest = ""
        self._changed = 0.0

    @property
    def is_there(self) -> bool:
        """Whether a run without codecs has finished."""
        return bool(self._digest)

    def keep(self, run: FinishedRun) -> None:
        """Keep the final model of a run."""
        os.replace(run.directory.checkpoint(ROUNDS), self._file)
        self._changed = _distance(run.directory.checkpoint(0), self._file)
        self._digest = run.summary.model.digest

    def error_of(self, run: FinishedRun) -> RelativeError:
        """Compare the final model of a run with the plain one, a range at a time.

        Raises:
            CheckpointError: a model cannot be read.
        """
        if run.summary.model.digest == self._digest:
            return RelativeError(True, 0.0)
        lost = _distance(self._file, run.directory.checkpoint(ROUNDS))
        return RelativeError(False, lost / self._changed)


def _distance(one: Path, other: Path) -> float:
    """Return the L2 norm of the difference of two models of the same tensors."""
    source, target = FileSource(one), FileSource(other)
    return find_difference(source, target, str(other), source.layout.by_name).l2
