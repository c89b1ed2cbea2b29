"""Runs of the command line tool to measure, and cases of the bench beside one another."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rows import MIB, Row

from flstream.bench.cases import EXCHANGE, BenchPlan, Case
from flstream.bench.measuring import Figures, measure
from flstream.runs.summary import Summary

JOBS = Path(__file__).parent.parent / "jobs"


class MeasuredRun(NamedTuple):
    """A run that has ended.

    Attributes:
        summary: content of ``summary.json``.
        events: records of ``events.jsonl``.
        samples: records of ``memory.jsonl``.
        began: time at which the command was started, in seconds since the epoch.
    """

    summary: Summary
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
        summary = msgspec.json.decode((path / "summary.json").read_bytes(), type=Summary)
        files = [(path / name).read_bytes() for name in ("events.jsonl", "memory.jsonl")]
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


def rows_of_rounds(
    figures: Mapping[str, Figures], what: str, most: float | None = None
) -> Iterator[Row]:
    """Yield the seconds of each case's round beside the first's, and the server's memory.

    Args:
        figures: figures by case.
        what: description of all cases, before the name of each.
        most: times as long as in the first case that a round may take; None for any.
    """
    name, first = next(iter(figures.items()))
    for case, ours in figures.items():
        yield Row(f"a round, {what}{case}", ours.seconds, "s", first.seconds, name, most=most)
        server = ours.server_over_idle
        yield Row(f"server over idle, {what}{case}", server, "bytes", 64 * MIB, most=1)
