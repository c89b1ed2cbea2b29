"""``flstream validate``: check a job and forecast its traffic, memory and disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flstream.cli.options import Overrides, engine_settings, job_file
from flstream.cli.status import DONE, FAILED

if TYPE_CHECKING:
    from flstream.job import Job
    from flstream.simulation.forecasting.forecast import Forecast
    from flstream.simulation.forecasting.probe import Probe


def validate(
    job: Annotated[
        Path | None,
        typer.Argument(metavar="JOB", help="The job file, or a folder with a job.conf in it."),
    ] = None,
    overrides: Overrides = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where the run directory would be: the disk to look at.",
            show_default="runs",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="Where workers would run, as for flstream simulate: what fits where.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the plan as one JSON document, and nothing else."),
    ] = False,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="Print the JSON schema of job files, which editors use."),
    ] = False,
) -> None:
    """Check a job, and say what it would do and need, without running it.

    Names every mistake of the job file; then those of its code and its model that a run would
    only meet later. The model is built without its bytes where its factory allows that. What
    follows is the plan: bytes a round, about how much memory and disk the exchange takes, and
    whether this machine has that now.

    Exit status: 0 it is sound and fits, 1 it is sound but does not fit here, 2 it has mistakes.
    """
    import json

    from flstream.errors import UsageError
    from flstream.job import job_schema, load_job
    from flstream.report.console import make_console
    from flstream.report.forecast import forecast_json, print_forecast
    from flstream.simulation.forecasting.fitting import available_in, lacks

    if schema:
        typer.echo(json.dumps(job_schema(), indent=2))
        raise typer.Exit(DONE)
    if job is None:
        raise UsageError("name the job file, or print the schema of job files with --schema")
    path = job_file(job)
    # Where nodes would join is of no matter here, so nobody has to say.
    nowhere = ["engine.bind=localhost:0", "engine.key_file=key"] if engine == "join" else []
    loaded = load_job(path, [*nowhere, *(overrides or ())], engine_settings(engine))
    found, need = _plan(path, loaded)
    available = available_in(run_dir or Path("runs"))
    lacking = list(lacks(loaded, found.layout, need, available))
    console = make_console()
    # Those of a strict model are mistakes, and were listed as such.
    differences = found.differences
    if as_json:
        document = forecast_json(loaded, need, available, lacking)
        if differences:
            document["differences"] = differences
        console.out(json.dumps(document, indent=2), highlight=False)
    else:
        print_forecast(console, loaded, need, available, lacking)
        if differences:
            kept = "what it lacks is as model.factory makes it"
            console.out(f"\nmodel.initial: {differences}; {kept}", highlight=False)
    raise typer.Exit(FAILED if lacking else DONE)


def _plan(path: Path, job: Job) -> tuple[Probe, Forecast]:
    """Check a job's code and model, and forecast its needs.

    Args:
        path: path of the job file, for the error message.
        job: the loaded job.

    Returns:
        The layout of the job's model with what was measured, and the forecast.

    Raises:
        JobError: the code or the model has mistakes; the message lists all of them.
    """
    from flstream.engines.fork_server import host_for
    from flstream.errors import CheckpointError, ModelError, UsageError
    from flstream.job import JobError, Problem
    from flstream.job.imports import missing_modules
    from flstream.simulation.forecasting.forecast import forecast
    from flstream.simulation.forecasting.probe import probe
    from flstream.simulation.own_code import own_code_problems

    problems = list(missing_modules(job))
    try:
        with host_for(job) as host:
            problems += own_code_problems(job, host)
            found = probe(job, host)
        need = forecast(job, found.layout, found.imports)
    except (ModelError, CheckpointError, UsageError) as error:
        problems.append(Problem("", str(error)))
    else:
        if not problems:
            return found, need
    raise JobError(path.absolute(), problems)
