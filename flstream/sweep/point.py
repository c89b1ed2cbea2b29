"""The process of one run of a sweep: its launcher, forked with all imports made."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import closing
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import UNSET

from flstream.debugging import code_failed
from flstream.engines.processes import ProcessHost
from flstream.errors import FlstreamError, UsageError
from flstream.job import Job
from flstream.report.console import make_console
from flstream.report.running import run_and_show
from flstream.runs.job_match import check_same_job
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import Summary
from flstream.simulation.child import redirect_output
from flstream.telemetry.memory_limit import limited
from flstream.transport.messages import MessageChannel


class PointEnded(msgspec.Struct):
    """End of a run.

    Attributes:
        status: How the run has ended; ``failed`` where it could not begin.
        rounds: Rounds that it has completed.
        ended_early: Whether these are fewer than the job has, and it has nothing left to do.
        score: Its best key metric; None where nothing was scored.
        seconds: How long it took, over all sittings.
        simulated_seconds: How long it took by the virtual clock; None without one.
        error: Why it failed; empty where it has not.
        warnings: Sentences on what went wrong, though it could go on.
    """

    status: Literal["finished", "failed", "stopped"]
    rounds: int = 0
    ended_early: bool = False
    score: float | None = None
    seconds: float = 0.0
    simulated_seconds: float | None = None
    error: str = ""
    warnings: list[str] = []

    @classmethod
    def of(cls, summary: Summary) -> PointEnded:
        """Return the end that a run's summary tells of."""
        score = None if summary.best is None else summary.best.value
        return cls(
            "failed" if summary.status == "running" else summary.status,
            summary.rounds_completed,
            summary.ended_early is not None,
            score,
            summary.wall_seconds,
            None if summary.simulated_seconds is UNSET else summary.simulated_seconds,
            summary.error or "",
            summary.warnings,
        )


def run_point(job: Job, path: Path, has_failed: bool, sweep: socket.socket) -> None:
    """Run a job in a folder, or resume the run in it, and tell the sweep how that ended.

    Args:
        job: The job.
        path: The run directory; new, or that of a run that was cut off.
        has_failed: Whether that run failed: it begins anew if its job or code was mended since,
            and the old folder is kept as ``.failed/<name>-1``.
        sweep: Socket to the sweep.
    """
    log = path.with_name(f"{path.name}.log")
    redirect_output(log)
    console = make_console(file=sys.stdout)
    console.quiet = True
    try:
        with limited(job.memory_limit), closing(ProcessHost.forked(sweep)) as host:
            if has_failed:
                _set_aside_other(job, path)
            run = RunDirectory.reopen(job.name, path)
            summary = run_and_show(job, run, console, resume=True, host=host)
        end = PointEnded.of(summary)
    except FlstreamError as error:
        end = PointEnded("failed", error=str(error))
    except Exception as error:
        code_failed(error)
        end = PointEnded("failed", error=f"{type(error).__name__}: {error}; see {log}")
    sys.stdout.flush()
    if not log.stat().st_size:
        log.unlink()
    MessageChannel[PointEnded](sweep, "the sweep", PointEnded).send(end)
    os._exit(0)


def _set_aside_other(job: Job, path: Path) -> None:
    """Rename the folder of a run that another job or other code has made."""
    run = RunDirectory(path)
    if not run.job_file.exists():
        return
    try:
        check_same_job(job, run)
    except UsageError:
        set_aside(path)


def set_aside(path: Path) -> None:
    """Rename the folder of a run ``.failed/<name>-<number>``."""
    number = 1
    while (aside := path.parent / ".failed" / f"{path.name}-{number}").exists():
        number += 1
    aside.parent.mkdir(exist_ok=True)
    path.rename(aside)
