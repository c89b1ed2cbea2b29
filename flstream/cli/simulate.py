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
            help="Folder for what the run leaves behind: new, or empty; with --resume, the run.",
            show_default="runs/<job>-<time>",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with a run after its last completed round: the one in --run-dir, or the "
            "newest runs/<job>-<time>. A run that was not begun is started.",
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the summary as one JSON document, and nothing else."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Run a job: a server, and a process for each client, on this machine.

    While it runs you see each site, its transfers and its memory; at the end, what every round
    brought and what it cost. The run directory keeps the models, the events and summary.json.

    A run that was stopped, killed or failed goes on with --resume, and a finished one too if
    the job has more rounds now. The job must be the same in all else.
    """
    from flstream.job import load_job
    from flstream.report.console import make_console, report_error
    from flstream.report.result import print_result
    from flstream.report.view import watching
    from flstream.simulator.launcher import simulate as run_job
    from flstream.simulator.resume import final_summary, plan_resume
    from flstream.simulator.run_directory import RunDirectory

    loaded = load_job(job / "job.conf" if job.is_dir() else job, overrides or ())
    run = (RunDirectory.reopen if resume else RunDirectory.create)(loaded.name, run_dir)
    console = make_console()
    console.quiet = as_json or quiet
    with run.in_use():
        point = plan_resume(loaded, run) if resume else None
        if point is not None and point.is_finished:
            console.out(f"nothing is left to do: the run in {run.path} is finished")
            summary = final_summary(loaded, run, point)
        else:
            if point is not None:
                after = f"after round {point.round}" if point.round else "from its beginning"
                console.out(f"the run in {run.path} goes on {after}")
            if console.quiet:
                summary = run_job(loaded, run, resume=point)
            else:
                with watching(console) as listener:
                    summary = run_job(loaded, run, listener, resume=point)
    print_result(console, summary, run)
    if as_json:
        console.quiet = False
        console.out(summary.to_json(), highlight=False)
    if summary.status == "failed":
        report_error(f"{summary.error}\n  in the run directory {run.path}")
    raise typer.Exit({"finished": DONE, "stopped": STOPPED}.get(summary.status, FAILED))
