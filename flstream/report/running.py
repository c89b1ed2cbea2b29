"""Running a job while showing it: its progress, its result, and its report at the end."""

from __future__ import annotations

from rich.console import Console

from flstream.engines.processes import ProcessHost
from flstream.job import Job
from flstream.report.html.run_end import leave_report
from flstream.report.live.view import watching
from flstream.report.result import print_result
from flstream.runs.resume import final_summary, plan_resume
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import Summary
from flstream.simulation.interruption import stoppable
from flstream.simulation.launcher import simulate


def run_and_show(
    job: Job,
    run: RunDirectory,
    console: Console,
    *,
    resume: bool = False,
    host: ProcessHost | None = None,
) -> Summary:
    """Run a job, and show it on a console.

    Args:
        job: the job.
        run: a new run directory; with ``resume``, that of the run to go on with.
        console: console to show it on; a quiet one shows nothing.
        resume: whether to go on with an earlier run.
        host: process host that is prepared for the job; None for a new one.

    Returns:
        The content of ``summary.json``.

    Raises:
        UsageError: the run directory is in use, or its run cannot be resumed by this job.
    """
    with run.in_use():
        point = plan_resume(job, run) if resume else None
        if point is not None and point.is_finished:
            console.out(f"nothing is left to do: the run in {run.path} is finished")
            run.tidy()  # the launcher may have been killed before it did this
            summary = final_summary(job, run, point)
        else:
            if point is not None:
                after = f"after round {point.round}" if point.round else "from its beginning"
                console.out(f"the run in {run.path} goes on {after}")
            # Inline, pdb and what training code prints have the screen.
            with watching(console, has_screen=not job.engine.is_inline) as listener:
                summary = simulate(job, run, listener, resume=point, host=host)
        print_result(console, summary, run)
        with stoppable():
            leave_report(run, console, has_run=point is None or not point.is_finished)
    return summary
