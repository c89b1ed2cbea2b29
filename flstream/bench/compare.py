"""Runs the exchange job in one mode after another, and takes the medians."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from flstream.errors import AbortedError, SimulationError
from flstream.job import load_job
from flstream.simulator.launcher import simulate
from flstream.simulator.run_directory import RunDirectory
from flstream.simulator.summary import RoundSummary, Summary

Mode = Literal["pull", "push", "native"]
MODES: tuple[Mode, ...] = ("pull", "push", "native")

_JOB = Path(__file__).parent / "exchange" / "job.conf"

# The first round shares its time with the start of the processes, so the second is measured.
_ROUNDS = 2
# What processes need beside models, measured as PSS: torch and the like, which they share, and
# what each has for itself.
_SHARED_BYTES = 250 << 20
_PROCESS_BYTES = 20 << 20


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        model_bytes: bytes of the model.
        clients: number of clients.
        modes: modes to compare.
        chunk_size: longest frame in bytes, for the modes that have frames.
        tensors: number of tensors, all of one size; None for a mix like a transformer's.
        repeat: how often to run each mode.
    """

    model_bytes: int
    clients: int
    modes: Sequence[Mode]
    chunk_size: int
    tensors: int | None
    repeat: int


@dataclass(frozen=True)
class Measurement:
    """One run of one mode; seconds and bytes are plain numbers.

    Attributes:
        download: seconds until every client had the model, in the measured round.
        upload_and_fold: seconds until every update was folded.
        checkpoint: seconds until the next model was durable.
        requests: requests a round, both ways, of all clients.
        server_peak_rss: over the server's idle.
        server_peak_uss: not over idle: USS counts a process's own pages alone.
        client_peak_rss: over idle, of the largest client.
        client_peak_uss: of the largest client.
        total_peak_pss: of all processes at one time.
    """

    download: float
    upload_and_fold: float
    checkpoint: float
    requests: int
    server_peak_rss: int
    server_peak_uss: int
    client_peak_rss: int
    client_peak_uss: int
    total_peak_pss: int


@dataclass(frozen=True)
class Result:
    """One mode: what it was predicted to need, and the medians of its runs.

    Attributes:
        mode: the mode.
        predicted_bytes: memory that all its processes together may need at one time.
        available_bytes: memory that this machine had before it began.
        runs: each run's figures; empty where the prediction did not fit, so that it was not run.
    """

    mode: Mode
    predicted_bytes: int
    available_bytes: int
    runs: tuple[Measurement, ...]

    @property
    def median(self) -> Measurement | None:
        """The median of each figure over the runs, or None if there are none."""
        if not self.runs:
            return None
        table = [asdict(run) for run in self.runs]
        return Measurement(
            **{name: statistics.median(row[name] for row in table) for name in table[0]}
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        median = self.median
        return {
            "mode": self.mode,
            "predicted_bytes": self.predicted_bytes,
            "available_bytes": self.available_bytes,
            "ran": median is not None,
            "median": asdict(median) if median else None,
            "runs": [asdict(run) for run in self.runs],
        }


def predict_bytes(mode: Mode, model_bytes: int, clients: int) -> int:
    """The most memory that a run will have in use at one time, over all processes.

    Each client holds the model. In native mode it holds the model serialised as well, and the
    server holds one serialised model for each client, either way; and for a moment the two copies
    from which the one being made comes.
    """
    processes = _SHARED_BYTES + (clients + 4) * _PROCESS_BYTES
    if mode == "native":
        return processes + (3 * clients + 2) * model_bytes
    return processes + clients * model_bytes


def compare(plan: Plan, folder: Path, on_step: Callable[[str], None]) -> list[Result]:
    """Measure each mode, alternating between them.

    Args:
        plan: what to measure.
        folder: where the run directories go while they are needed, on the disk to be measured.
        on_step: called with a sentence before each run.

    Raises:
        SimulationError: a run failed.
        AbortedError: Ctrl-C stopped it.
    """
    predicted = {mode: predict_bytes(mode, plan.model_bytes, plan.clients) for mode in plan.modes}
    available = psutil.virtual_memory().available
    runs: dict[Mode, list[Measurement]] = {mode: [] for mode in plan.modes}
    fitting = [mode for mode in plan.modes if predicted[mode] <= available]
    with _folder(folder):
        for number in range(1, plan.repeat + 1):
            for mode in fitting:
                on_step(f"{mode}, run {number} of {plan.repeat}")
                runs[mode].append(_measure(plan, mode, folder))
    return [Result(mode, predicted[mode], available, tuple(runs[mode])) for mode in plan.modes]


@contextmanager
def _folder(folder: Path) -> Iterator[None]:
    """Make a folder, and take it away again if it was not there before and is empty."""
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        if made and not any(folder.iterdir()):
            folder.rmdir()


def _measure(plan: Plan, mode: Mode, folder: Path) -> Measurement:
    overrides = [
        f"rounds={_ROUNDS}",
        f"clients.count={plan.clients}",
        f"model.args.size={plan.model_bytes}",
        f"streaming.mode={mode}",
        f"streaming.tensor_download_chunk_size={plan.chunk_size}",
    ]
    if plan.tensors is not None:
        overrides.append(f"model.args.tensors={plan.tensors}")
    job = load_job(_JOB, overrides)
    work = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
    try:
        summary = simulate(job, RunDirectory.create(job.name, work / "run"))
    finally:
        shutil.rmtree(work)
    if summary.status == "stopped":
        raise AbortedError(f"the {mode} run was stopped")
    if summary.status == "failed":
        raise SimulationError(f"the {mode} run failed: {summary.error}")
    return _figures(summary)


def _figures(summary: Summary) -> Measurement:
    steady: RoundSummary = summary.rounds[-1]
    server, clients = summary.memory.server, summary.memory.clients.values()
    transfer = summary.transfer
    return Measurement(
        download=steady.download,
        upload_and_fold=steady.upload_and_fold,
        checkpoint=steady.checkpoint,
        requests=(transfer.down.requests + transfer.up.requests) // _ROUNDS,
        server_peak_rss=server.peak_rss - server.idle_rss,
        server_peak_uss=server.peak_uss,
        client_peak_rss=max(each.peak_rss - each.idle_rss for each in clients),
        client_peak_uss=max(each.peak_uss for each in clients),
        total_peak_pss=summary.memory.peak_total_pss,
    )
