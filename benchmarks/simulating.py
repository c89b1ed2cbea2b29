"""Runs of the command line tool, to be measured or to be killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil

JOBS = Path(__file__).parent.parent / "jobs"
# Seconds after which a run of a job that takes a few counts as stuck.
STUCK = 180.0
# How often the journal of a run is looked at by who waits for it to grow. Nothing can wake a
# process whenever another one has written to a file, short of a dependency for it.
GLANCE = 0.002


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


class StartedRun:
    """A run that was started in order to kill it.

    Args:
        line: Command line of the run.
        run_folder: Path of its run directory.
    """

    def __init__(self, line: Sequence[str], run_folder: Path) -> None:
        self._journal = run_folder / "events.jsonl"
        self._started = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait_until(self, holds: Callable[[], bool]) -> bool:
        """Wait until a condition holds or the run has ended, and return whether it holds."""
        deadline = time.monotonic() + STUCK
        while not holds():
            if self._started.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise SystemExit(f"the run that writes {self._journal} is stuck")
            time.sleep(GLANCE)
        return True

    def wait_for_lines(self, count: int) -> bool:
        """Wait until the journal has a number of lines, and return whether it has."""
        return self.wait_until(lambda: lines_of(self._journal) >= count)

    def wait_at_most(self, seconds: float) -> None:
        """Wait for a time, or until the run has ended."""
        with suppress(subprocess.TimeoutExpired):
            self._started.wait(seconds)

    def kill(self, victim: str, choose: Callable[[list[int]], int]) -> bool:
        """Kill processes of the run with SIGKILL, and wait until all of it has ended.

        They need not be there yet: then they are killed as soon as the journal names them.

        Args:
            victim: ``all``, ``server``, or ``client`` or ``worker`` for one process of sites.
            choose: Function that picks one of the pids of clients or workers.

        Returns:
            Whether the run had not ended before.
        """
        everyone: list[psutil.Process] = []
        pids: list[int] = []

        def are_there() -> bool:
            with suppress(psutil.NoSuchProcess):
                launcher = psutil.Process(self._started.pid)
                everyone[:] = [launcher, *launcher.children(recursive=True)]
                pids[:] = self._pids(victim, everyone, choose)
            return bool(pids)

        was_running = self.wait_until(are_there) and self._started.poll() is None
        for pid in pids if was_running else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._started.wait(STUCK)
        psutil.wait_procs(everyone, timeout=30)
        return was_running

    def _pids(
        self, victim: str, everyone: list[psutil.Process], choose: Callable[[list[int]], int]
    ) -> list[int]:
        alive = [process.pid for process in everyone]
        if victim == "all":
            return alive
        # The newest of a name: a resumed run has had others before.
        ready = [each for each in records(self._journal) if each["kind"] == "process_ready"]
        named = {event["process"]: event["pid"] for event in ready}
        wanted = sorted(
            pid
            for name, pid in named.items()
            if (name == "server") == (victim == "server") and pid in alive
        )
        if not wanted:
            return alive  # it is still starting, so that nobody else knows of the victim yet
        return wanted if victim == "server" else [choose(wanted)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._started.poll() is None:
            self.kill("all", min)


def lines_of(path: Path) -> int:
    """Return the number of whole lines of a file; 0 without a file."""
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0
