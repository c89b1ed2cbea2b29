"""Runs of the command line tool to measure, and cases of the bench beside one another."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flstream.bench.cases import EXCHANGE, BenchPlan, Case
from flstream.bench.measuring import Figures, measure

JOBS = Path(__file__).parent.parent / "jobs"


class MeasuredRun(NamedTuple):
    """A run that has ended.

    Attributes:
        summary: content of ``summary.json``.
        events: records of ``events.jsonl``.
        samples: records of ``memory.jsonl``.
        began: time at which the command was started, in seconds since the epoch.
    """

    summary: dict[str, Any]
    events: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    began: float


def run(job: Path, folder: Path, *settings: str, may_fail: str = "") -> MeasuredRun:
    """Run a job, and remove its run directory.

    Args:
        job: job file, or a folder with one.
        folder: folder for the run directory.
        settings: overrides of the job file.
        may_fail: words in the error of a run that failed as the measurement expects.

    Raises:
        SystemExit: the run failed otherwise.
    """
    path = folder / "run"
    line = [sys.executable, "-m", "flstream", "simulate", str(job), "--quiet"]
    line += ["--run-dir", str(path)]
    for setting in settings:
        line += ["--set", setting]
    began = time.time()
    # No limit of time: some of these exchange gigabytes.
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode and not (may_fail and may_fail in done.stderr):
        raise SystemExit(f"{' '.join(line)}: {done.stderr}")
    try:
        summary = json.loads((path / "summary.json").read_text())
        return MeasuredRun(
            summary, records(path / "events.jsonl"), records(path / "memory.jsonl"), began
        )
    finally:
        shutil.rmtree(path)


def records(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines, without a last line that is not whole."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def over_idle(memory: Mapping[str, int]) -> int:
    """Return the peak RSS of a process over its RSS after its imports, in bytes."""
    return max(memory["peak_rss"] - memory["idle_rss"], 0)


def compare(
    cases: Mapping[str, Sequence[str]],
    folder: Path,
    size: int,
    clients: int,
    *,
    same_bits: bool = False,
    repeat: int = 3,
    job_file: Path = EXCHANGE,
    rounds: int = 2,
) -> dict[str, Figures]:
    """Run cases of the bench in turn, and return the medians of each by its name.

    Args:
        cases: overrides of each case, by its name.
        folder: folder for the runs.
        size: size of the model in bytes.
        clients: number of clients.
        same_bits: whether all final models must be the same.
        repeat: number of runs of each case.
        job_file: job file whose key ``model.args.size`` is the size of the model.
        rounds: rounds of a run, of which the last one is measured.

    Raises:
        SystemExit: a case failed or does not fit, or models differ.
    """
    listed = [Case(name, tuple(overrides)) for name, overrides in cases.items()]
    plan = BenchPlan(size, clients, None, listed, repeat, job_file=job_file, rounds=rounds)
    results = measure(plan, folder, lambda line: print(line, file=sys.stderr, flush=True))
    for result in results:
        if result.reason:
            raise SystemExit(f"{result.case.name}: {result.reason}")
    if same_bits and len({result.digest for result in results}) > 1:
        raise SystemExit(f"models differ: {[(r.case.name, r.digest) for r in results]}")
    return {result.case.name: result.median for result in results if result.median}
