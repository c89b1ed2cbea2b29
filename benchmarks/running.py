"""Runs of the command line tool to measure, and cases of the bench beside one another."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rows import MIB, Row

from flstream.bench.cases import EXCHANGE, BenchPlan, Case
from flstream.bench.measuring import Figures, measure
from flstream.runs.summary import Summary

JOBS = Path(__file__).parent.parent / "jobs"


class MeasuredRun(NamedTuple):
    """A run that has ended."""

    summary: Summary  # content of ``summary.json``
    events: list[dict[str, Any]]  # records of ``events.jsonl``
    samples: list[dict[str, Any]]  # records of ``memory.jsonl``
    began: float  # time at which the command was started, in seconds since the epoch


def run(
    job: Path,
    folder: Path,
    *settings: str,
    may_fail: str = "",
    check: Callable[[Path], object] = lambda path: None,
) -> MeasuredRun:
    """Run a job, and remove its run directory.

    Args:
        job: Job file, or a folder with one.
        folder: Folder for the run directory.
        settings: Overrides of the job file.
        may_fail: Words in the error of a run that failed as the measurement expects.
        check: Called with the run directory before it is removed.

    Raises:
        SystemExit: The run failed otherwise.
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
        summary = msgspec.json.decode((path / "summary.json").read_bytes(), type=Summary)
        files = [(path / name).read_bytes() for name in ("events.jsonl", "memory.jsonl")]
        check(path)
        # The last line may not be whole.
        events, samples = ([json.loads(line) for line in f.split(b"\n")[:-1]] for f in files)
        return MeasuredRun(summary, events, samples, began)
    finally:
        shutil.rmtree(path)


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
        cases: Overrides of each case, by its name.
        folder: Folder for the runs.
        size: Size of the model in bytes.
        clients: Number of clients.
        same_bits: Whether all final models must be the same.
        repeat: Number of runs of each case.
        job_file: Job file whose key ``model.args.size`` is the size of the model.
        rounds: Rounds of a run, of which the last one is measured.

    Raises:
        SystemExit: A case failed or does not fit, or models differ.
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


def rows_of_rounds(
    figures: Mapping[str, Figures], what: str, most: float | None = None
) -> Iterator[Row]:
    """Yield the seconds of each case's round beside the first's, and the server's memory.

    Args:
        figures: Figures by case.
        what: Description of all cases, before the name of each.
        most: Times as long as in the first case that a round may take; None for any.
    """
    name, first = next(iter(figures.items()))
    for case, ours in figures.items():
        yield Row(f"a round, {what}{case}", ours.seconds, "s", first.seconds, name, most=most)
        server = ours.server_over_idle
        yield Row(f"server over idle, {what}{case}", server, "bytes", 64 * MIB, most=1)
