"""``flstream simulate``: run a job."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flstream.cli.options import JobPath, Overrides, job_file
from flstream.cli.status import DONE, FAILED, STOPPED

if TYPE_CHECKING:
    from flstream.job import Job
    from flstream.simulator.processes import ProcessHost


def simulate(
    job: JobPath,
    overrides: Overrides = None,
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
    brought and what it cost. The run directory keeps the models, the events, summary.json and
    report.html, a page about the run.

    A run that was stopped, killed or failed goes on with --resume, and a finished one too if
    the job has more rounds now. The job must be the same in all else.
    """
    from flstream.simulator.host import needs_of, new_host

    path = job_file(job)
    with closing(new_host()) as host:
        # Its imports take longest. What this process needs, it imports meanwhile.
        host.begin()
        from flstream.job import load_job

        loaded = load_job(path, overrides or ())
        host.prepare(needs_of(loaded))
        raise typer.Exit(_run(loaded, host, run_dir, resume, as_json, quiet))


def _run(
    loaded: Job, host: ProcessHost, run_dir: Path | None, resume: bool, as_json: bool, quiet: bool
) -> int:
    """Run a job that was loaded, and return the exit status."""
    from flstream.report.console import make_console, report_error
    from flstream.report.html.run_end import leave_report
    from flstream.report.live.view import watching
    from flstream.report.result import print_result
    from flstream.simulator.files.resume import final_summary, plan_resume
    from flstream.simulator.files.run_directory import RunDirectory
    from flstream.simulator.interruption import stoppable
    from flstream.simulator.launcher import simulate as run_job

    run = (RunDirectory.reopen if resume else RunDirectory.create)(loaded.name, run_dir)
    console = make_console()
    console.quiet = as_json or quiet
    with run.in_use():
        point = plan_resume(loaded, run) if resume else None
        if point is not None and point.is_finished:
            console.out(f"nothing is left to do: the run in {run.path} is finished")
            run.tidy()  # whoever ran it may have been killed before that
            summary = final_summary(loaded, run, point)
        else:
            if point is not None:
                after = f"after round {point.round}" if point.round else "from its beginning"
                console.out(f"the run in {run.path} goes on {after}")
            if console.quiet:
                summary = run_job(loaded, run, resume=point, host=host)
            else:
                with watching(console) as listener:
                    summary = run_job(loaded, run, listener, resume=point, host=host)
        print_result(console, summary, run)
        with stoppable():
            leave_report(run, console, has_run=point is None or not point.is_finished)
    if as_json:
        console.quiet = False
        console.out(summary.to_json(), highlight=False)
    if summary.status == "failed":
        report_error(f"{summary.error}\n  in the run directory {run.path}")
    return {"finished": DONE, "stopped": STOPPED}.get(summary.status, FAILED)
