"""``flstream validate``: check a job and forecast its traffic, memory and disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flstream.cli.options import DONE, FAILED, AsJson, Engine, Overrides, engine_settings


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
    engine: Engine = None,
    as_json: AsJson = False,
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

    from flstream.compat import load_path
    from flstream.errors import UsageError
    from flstream.job import job_schema
    from flstream.job.load import job_file
    from flstream.report.console import make_console
    from flstream.report.forecast import forecast_json, print_forecast
    from flstream.simulation.forecast import available_in, lacks
    from flstream.simulation.probe import check_job

    if schema:
        typer.echo(json.dumps(job_schema(), indent=2))
        raise typer.Exit(DONE)
    if job is None:
        raise UsageError("name the job file, or print the schema of job files with --schema")
    loaded, kind = load_path(job, overrides or (), engine_settings(engine))
    probe, need = check_job(loaded, job_file(job))
    available = available_in(run_dir or Path("runs"))
    lacking = list(lacks(loaded, probe.layout, need, available))
    console = make_console()
    if kind and not as_json:
        console.print(kind, highlight=False)
    # Differences of a strict model are mistakes, and were listed as such.
    differences = probe.differences
    if as_json:
        document = forecast_json(loaded, need, available, lacking)
        if differences:
            document["differences"] = differences
        console.out(json.dumps(document, indent=2), highlight=False)
    else:
        print_forecast(console, loaded, need, available, lacking)
        if differences:
            note = f"model.initial: {differences}; what it lacks is as model.factory makes it"
            console.out(f"\n{note}", highlight=False)
    raise typer.Exit(FAILED if lacking else DONE)
