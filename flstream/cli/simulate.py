"""``flstream simulate``: run a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flstream.cli.status import DONE, FAILED, STOPPED


def simulate(
    job: Annotated[
        Path, typer.Argument(metavar="JOB", help="The job file, or a folder with a job.conf in it.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a key of the job file, such as clients.count=4. May be repeated.",
        ),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for what the run leaves behind: new, or empty.",
            show_default="runs/<job>-<time>",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the summary as one JSON document, and nothing else."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Run a job: a server, and a process for each client, on this machine.

    While it runs you see each site, its transfers and its memory; at the end, what every round
    brought and what it cost. The run directory keeps the models, the events and summary.json.
    """
    from flstream.job import load_job
    from flstream.report.console import make_console, report_error
    from flstream.report.result import print_result
    from flstream.report.view import watching
    from flstream.simulator.launcher import simulate as run_job
    from flstream.simulator.run_directory import RunDirectory

    loaded = load_job(job / "job.conf" if job.is_dir() else job, overrides or ())
    run = RunDirectory.create(loaded.name, run_dir)
    console = make_console()
    if as_json or quiet:
        summary = run_job(loaded, run)
    else:
        with watching(console) as listener:
            summary = run_job(loaded, run, listener)
        print_result(console, summary, run)
    if as_json:
        console.out(summary.to_json(), highlight=False)
    if summary.status == "failed":
        report_error(f"{summary.error}\n  in the run directory {run.path}")
    raise typer.Exit({"finished": DONE, "stopped": STOPPED}.get(summary.status, FAILED))
