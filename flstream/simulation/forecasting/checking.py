"""Check of a job's code and model, and the forecast of its needs."""

from __future__ import annotations

from pathlib import Path

from flstream.engines.fork_server import host_for
from flstream.errors import CheckpointError, ModelError, UsageError
from flstream.job import Job, JobError, Problem
from flstream.job.imports import missing_modules
from flstream.simulation.forecasting.forecast import Forecast, forecast
from flstream.simulation.forecasting.probe import Probe, probe
from flstream.simulation.own_code import own_code_problems


def check_job(job: Job, path: Path) -> tuple[Probe, Forecast]:
    """Check a job's code and model, and forecast its needs.

    Args:
        job: The loaded job.
        path: Path of the job file, for the error message.

    Returns:
        The layout of the job's model with what was measured, and the forecast.

    Raises:
        JobError: The code or the model has mistakes; the message lists all of them.
    """
    problems = list(missing_modules(job))
    try:
        with host_for(job) as host:
            problems += own_code_problems(job, host)
            measured = probe(job, host)
        if not problems:
            return measured, forecast(job, measured.layout, measured.imports)
    except (ModelError, CheckpointError, UsageError) as error:
        problems.append(Problem("", str(error)))
    raise JobError(path.absolute(), problems)
