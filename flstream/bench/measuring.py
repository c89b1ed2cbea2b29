"""Measurement of a bench's cases in temporary folders, as figures and as JSON."""

from __future__ import annotations

import math
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from flstream.bench.cases import BenchPlan, Case, Need
from flstream.errors import AbortedError, SimulationError, UsageError
from flstream.model.checkpoint import FileSource
from flstream.runs.history import RoundRecord
from flstream.runs.journal import read_history
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import Summary
from flstream.simulation.forecast import available_in
from flstream.simulation.interruption import undisturbed
from flstream.simulation.launcher import simulate
from flstream.telemetry.machine import machine_facts, processor_name
from flstream.units import format_bytes

# Weights of two models that are compared at a time: 4 MiB of each.
_STEP = 1 << 20


@dataclass(frozen=True)
class Figures:
    """Figures of one run. Seconds, bytes and requests are those of its last round."""

    seconds: float  # of the whole round
    download: float  # until every client had the model
    train: float  # in which the clients changed it
    upload_and_fold: float  # until every update was folded
    checkpoint: float  # until the next model was durable
    down_bytes: float  # bytes that moved to all clients
    up_bytes: float  # bytes that moved from all clients
    direct_bytes: float  # bytes of both that receivers read from files or memory themselves
    requests: float  # requests of all clients, both ways
    rate: float  # bytes a second, both ways, while models and updates moved
    server_over_idle: float  # peak RSS of the server over that after its imports, in bytes
    client_over_idle: float  # the same of the client with the highest peak
    total_pss: float  # highest PSS of all processes at one time, in bytes
    wall_seconds: float  # of the whole run, from its first process to its last


@dataclass
class CaseResult:
    """Measurements of a case."""

    case: Case
    need: Need  # predicted memory and disk of a run
    runs: list[Figures] = field(default_factory=list)  # figures of each run
    reason: str = ""  # why it was not run as often as planned; empty if it was
    has_failed: bool = False  # whether that was a failure, and not a lack of memory or disk
    digest: str = ""  # digest of the final model; empty without runs
    # L2 norm of the difference of the final model from the first case's, divided by that of all
    # changes of the first case's; None where codecs are not compared.
    loss: float | None = None

    @property
    def median(self) -> Figures | None:
        """Median of each figure over the runs; None without runs."""
        if not self.runs:
            return None
        rows = [asdict(run) for run in self.runs]
        return Figures(**{name: statistics.median(row[name] for row in rows) for name in rows[0]})

    def ratio(self, results: Sequence[CaseResult]) -> float | None:
        """Return a round's seconds over those of the first case; None without any."""
        medians = [result.median for result in results]
        first = next((figures for figures in medians if figures is not None), None)
        return self.median.seconds / first.seconds if self.median and first else None


def measure(plan: BenchPlan, folder: Path, tell: Callable[[str], None]) -> list[CaseResult]:
    """Run the cases of a plan in turn, as often as it repeats them.

    A case for which there is not enough memory or disk is not run. One that fails is not repeated.

    Args:
        plan: Cases to run.
        folder: Folder for the temporary run directories, on the disk to be measured.
        tell: Function called with a line of progress after each run.

    Returns:
        The results of all cases, in the order of the plan.

    Raises:
        UsageError: A case makes no valid job, no case fits this machine, or the folder cannot be
            written.
        AbortedError: Ctrl-C stopped a run.
        KeyboardInterrupt: Ctrl-C came between two runs.
    """
    results = [CaseResult(case, plan.need(case)) for case in plan.cases]
    with _temporary_folder(folder) as work:
        for number in range(1, plan.repeat + 1):
            for result in results:
                # Other processes may take memory or disk at any time.
                result.reason = result.reason or _lack(result.need, work)
                if result.reason:
                    continue
                try:
                    _run(plan, result, work)
                except SimulationError as error:
                    result.reason, result.has_failed = str(error), True
                    tell(f"{result.case.name}: failed: {error}")
                    continue
                seconds = f"{result.runs[-1].seconds:.2f} s a round"
                tell(f"{result.case.name}, run {number} of {plan.repeat}: {seconds}")
            if not any(result.runs or result.has_failed for result in results):
                reasons = "; ".join(f"{result.case.name} {result.reason}" for result in results)
                raise UsageError(f"nothing fits here, name a smaller --model-size: {reasons}")
    return results


def document(plan: BenchPlan, results: Sequence[CaseResult]) -> dict[str, Any]:
    """Convert a bench's results to JSON, with bytes and seconds as numbers."""
    keys = ("model_bytes", "clients", "tensors", "rounds", "repeat")
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**machine_facts(), "processor": processor_name()},
        "plan": {key: getattr(plan, key) for key in keys},
        "results": [
            {
                "case": result.case.name,
                "overrides": list(result.case.overrides),
                "ran": bool(result.runs),
                "reason": result.reason,
                "failed": result.has_failed,
                "digest": result.digest,
                "predicted": result.need._asdict(),
                "median": asdict(result.median) if result.median else None,
                "ratio": result.ratio(results),
                "error": result.loss,
                "runs": [asdict(run) for run in result.runs],
            }
            for result in results
        ],
    }


def _lack(need: Need, folder: Path) -> str:
    """Return the memory or disk that a case lacks on this machine; empty if it fits."""
    room = available_in(folder)
    if need.memory > room.memory:
        return f"needs about {format_bytes(need.memory)}, {format_bytes(room.memory)} available"
    if room.disk is not None and need.disk > room.disk:
        return f"needs about {format_bytes(need.disk)} of disk, {format_bytes(room.disk)} free"
    return ""


def _run(plan: BenchPlan, result: CaseResult, work: Path) -> None:
    """Run a case once, and add its figures to its result."""
    with tempfile.TemporaryDirectory(prefix="run-", dir=work) as path:
        run = RunDirectory.create("exchange", Path(path))
        summary = simulate(plan.job(result.case), run)
        if summary.status != "finished":
            kind = AbortedError if summary.status == "stopped" else SimulationError
            raise kind(str(summary.error))
        result.runs.append(_figures(read_history(run.events).rounds[-1], summary))
        if len(result.runs) == 1:
            result.digest = summary.model.digest
            if plan.with_codecs:
                result.loss = _loss(run, plan.rounds, work)


def _figures(measured: RoundRecord, summary: Summary) -> Figures:
    """Return the figures of a run, of its last round and of its largest client."""
    memory = summary.memory
    moved = measured.down.bytes + measured.up.bytes
    download, train, upload_and_fold, checkpoint = measured.phases
    return Figures(
        seconds=measured.seconds,
        download=download,
        train=train,
        upload_and_fold=upload_and_fold,
        checkpoint=checkpoint,
        down_bytes=measured.down.bytes,
        up_bytes=measured.up.bytes,
        direct_bytes=measured.down.direct + measured.up.direct,
        requests=measured.down.requests + measured.up.requests,
        rate=moved / (download + upload_and_fold),
        server_over_idle=memory.server.over_idle,
        # Inline, there is one process.
        client_over_idle=memory.largest_client if memory.clients else memory.server.over_idle,
        total_pss=memory.peak_total_pss,
        wall_seconds=summary.wall_seconds,
    )


def _loss(run: RunDirectory, last: int, work: Path) -> float:
    """Return the relative error of a run's final model; keep the first case's models."""
    initial, final = work / "initial.safetensors", work / "final.safetensors"
    if not final.exists():
        os.replace(run.checkpoint(0), initial)
        os.replace(run.checkpoint(last), final)
        return 0.0
    return _distance(run.checkpoint(last), final) / _distance(initial, final)


def _distance(one: Path, other: Path) -> float:
    """Return the L2 norm of the difference of two models of the same float32 tensors."""
    ours, theirs = (
        np.memmap(path, np.float32, "r", FileSource(path).header_bytes) for path in (one, other)
    )
    total = 0.0
    for start in range(0, len(ours), _STEP):
        lost = ours[start : start + _STEP].astype(np.float64) - theirs[start : start + _STEP]
        total += float(lost @ lost)
    return math.sqrt(total)


@contextmanager
def _temporary_folder(folder: Path) -> Iterator[Path]:
    """Create a folder in another, and remove it at the end of the block.

    The other one is created if it does not exist, and then removed too if it is empty.
    """
    work, existed = folder / f"bench-{uuid4().hex[:8]}", folder.exists()
    try:
        try:
            work.mkdir(parents=True)
        except OSError as error:
            what = f"the folder {folder.absolute()} cannot be written: {error.strerror}"
            raise UsageError(f"{what}; begin the bench in another") from error
        yield work
    finally:
        with undisturbed():
            shutil.rmtree(work, ignore_errors=True)
            if not existed:
                with suppress(OSError):  # other runs began there
                    folder.rmdir()
