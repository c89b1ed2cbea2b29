"""Runs of the command line tool, to be measured."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flstream.bench.cases import BenchPlan
from flstream.bench.measuring import Figures, measure

JOBS = Path(__file__).parent.parent / "jobs"
# Seconds after which a run of a job that takes a few counts as stuck.
STUCK = 180.0


class MeasuredRun(NamedTuple):
    """A run that has ended.

    Attributes:
        summary: Content of ``summary.json``.
        events: Records of ``events.jsonl``.
        samples: Records of ``memory.jsonl``.
        began: Time at which the command was started, in seconds since the epoch.
    """

    summary: dict[str, Any]
    events: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    began: float


class Outcome(NamedTuple):
    """Outcome of a command: exit status, summary on stdout ({} without one), and stderr."""

    status: int
    summary: dict[str, Any]
    errors: str


def command(job: Path, run_folder: Path, settings: Sequence[str], *more: str) -> list[str]:
    """Return the command line of a run of a job file."""
    line = [sys.executable, "-m", "flstream", "simulate", str(job), "--json"]
    for setting in settings:
        line += ["--set", setting]
    return [*line, "--run-dir", str(run_folder), *more]


def simulate(line: Sequence[str], timeout: float = STUCK) -> Outcome:
    """Run a command to its end, within so many seconds."""
    done = subprocess.run(line, capture_output=True, text=True, timeout=timeout, check=False)
    summary = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    return Outcome(done.returncode, summary, done.stderr)


def run(job: str, folder: Path, *settings: str) -> MeasuredRun:
    """Run one of the jobs of this checkout, and remove its run directory.

    Raises:
        SystemExit: the run failed.
    """
    path = folder / "run"
    line = command(JOBS / job, path, settings)
    began = time.time()
    # No limit of time: some of these exchange gigabytes.
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(line)}: {done.stderr}")
    try:
        samples = records(path / "memory.jsonl")
        return MeasuredRun(json.loads(done.stdout), records(path / "events.jsonl"), samples, began)
    finally:
        shutil.rmtree(path)


def figures_of(plan: BenchPlan, folder: Path) -> dict[str, Figures]:
    """Run the cases of a plan in turn, and return the medians of each by its name.

    Raises:
        SystemExit: a case failed or does not fit.
    """
    results = measure(plan, folder, lambda line: print(line, file=sys.stderr, flush=True))
    for result in results:
        if result.reason:
            raise SystemExit(f"{result.case.name}: {result.reason}")
    return {result.case.name: result.median for result in results if result.median}


def seconds_to_first_step(folder: Path, *settings: str) -> float:
    """Return the seconds from the command that runs the digits job to its first training step."""
    done = run("digits", folder, "rounds=1", *settings)
    steps = [
        event["time"]
        for event in done.events
        if event["kind"] == "site_state" and event["state"] == "training"
    ]
    return float(min(steps) - done.began)


def records(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines, without a last line that is not whole; [] without a file."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.split(b"\n")[:-1]]
