"""The process of one run of a sweep: its launcher, forked with all imports made."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import closing
from pathlib import Path

from flstream.debugging import code_failed
from flstream.engines.processes import ProcessHost
from flstream.errors import FlstreamError, UsageError
from flstream.job import Job
from flstream.report.console import make_console
from flstream.report.running import run_and_show
from flstream.runs.job_match import check_same_job
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.child import redirect_output
from flstream.sweep.record import PointRecord, has_failed
from flstream.telemetry.memory_limit import limited
from flstream.transport.messages import MessageChannel


def run_point(job: Job, path: Path, record: PointRecord, sweep: socket.socket) -> None:
    """Run a job in a folder, or resume the run in it, and send the sweep its record.

    Args:
        job: The job.
        path: The run directory; new, or that of a run that was cut off.
        record: What is known of the run. One that failed begins anew if its job or code was mended
            since, and the old folder is kept as ``.failed/<name>-1``.
        sweep: Socket to the sweep.
    """
    log = path.with_name(f"{path.name}.log")
    redirect_output(log)
    console = make_console(file=sys.stdout)
    console.quiet = True
    try:
        with limited(job.memory_limit), closing(ProcessHost.forked(sweep)) as host:
            if has_failed(record, RunDirectory(path)):
                _set_aside_other(job, path)
            run = RunDirectory.reopen(job.name, path)
            summary = run_and_show(job, run, console, resume=True, host=host)
        record.end(summary)
    except FlstreamError as error:
        record.fail(str(error))
    except Exception as error:
        code_failed(error)
        record.fail(f"{type(error).__name__}: {error}; see {log}")
    sys.stdout.flush()
    if not log.stat().st_size:
        log.unlink()
    MessageChannel[PointRecord](sweep, "the sweep", PointRecord).send(record)
    os._exit(0)


def _set_aside_other(job: Job, path: Path) -> None:
    """Rename the folder of a run of another job or other code ``.failed/<name>-<number>``."""
    run = RunDirectory(path)
    if not run.job_file.exists():
        return
    try:
        check_same_job(job, run)
    except UsageError:
        number = 1
        while (aside := path.parent / ".failed" / f"{path.name}-{number}").exists():
            number += 1
        aside.parent.mkdir(exist_ok=True)
        path.rename(aside)
