"""Running a job while showing it: its progress, its page, and its result."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.text import Text

from flstream.engines.processes import ProcessHost
from flstream.errors import FlstreamError
from flstream.job import Job
from flstream.report.console import LABEL_WIDTH, error_console
from flstream.report.live.view import watching
from flstream.report.result import print_result
from flstream.report.text import shown_path
from flstream.runs.run_directory import RunDirectory
from flstream.runs.small_files import temporary_of
from flstream.runs.summary import Summary
from flstream.simulation.interruption import stoppable
from flstream.simulation.launcher import simulate
from flstream.text import printable

# Least seconds between two pages of a run that is going on, and their most share of its time.
_LEAST_SECONDS, _MOST_SHARE = 5.0, 0.01


def run_and_show(
    job: Job,
    run: RunDirectory,
    console: Console,
    *,
    resume: bool = False,
    from_round: int | None = None,
    host: ProcessHost | None = None,
) -> Summary:
    """Run a job, and show it on a console and in the run's page.

    Args:
        job: The job.
        run: A new run directory; with ``resume``, that of the run to resume.
        console: Console to show it on; a quiet one shows nothing.
        resume: Whether to resume an earlier run.
        from_round: Round whose end the resumed run goes back to; None for where it was cut off.
        host: Process host that is prepared for the job; None for a new one.

    Returns:
        The content of ``summary.json``.

    Raises:
        UsageError: The run directory is in use, or its run cannot be resumed by this job.
    """
    with run.in_use():
        point = None
        if resume:
            from flstream.runs.resume import final_summary, plan_resume

            point = plan_resume(job, run, from_round)
        is_finished = point is not None and point.is_finished
        if point is not None and is_finished:
            console.out(f"nothing is left to do: the run in {run.path} is finished")
            run.tidy()  # the launcher may have been killed before it did this
            summary = final_summary(run, point)
        else:
            if point is not None:
                after = f"after round {point.round}" if point.round else "from its beginning"
                console.out(f"the run in {run.path} resumes {after}")
            # Inline, pdb and what training code prints have the screen.
            has_screen = not job.engine.is_inline
            with live_page(run) as page, watching(console, has_screen=has_screen) as listener:
                summary = simulate(job, run, listener, resume=point, host=host, on_round=page.set)
        print_result(console, summary, run)
        with stoppable():
            leave_page(run, console, has_run=not is_finished)
    return summary


@contextmanager
def live_page(run: RunDirectory) -> Iterator[threading.Event]:
    """Write the page of a run anew whenever the yielded event is set, as at the end of a round.

    Setting it costs nothing. A page that cannot be written is left to the end of the run.
    """
    is_due, over = threading.Event(), threading.Event()

    def write() -> None:
        while is_due.wait() and not over.is_set():
            is_due.clear()
            from flstream.report.page import write_page

            began = time.thread_time()  # what it costs the run
            with suppress(Exception):
                write_page([run.path], is_running=True)
            over.wait(max(_LEAST_SECONDS, (time.thread_time() - began) / _MOST_SHARE))

    thread = threading.Thread(target=write, name="live-page", daemon=True)
    thread.start()
    try:
        yield is_due
    finally:
        over.set()
        is_due.set()
        thread.join()


def leave_page(run: RunDirectory, console: Console, *, has_run: bool) -> None:
    """Write the page of a run that has ended and print its path, or a warning if that fails.

    An error never changes the result of the run. If it has not just been run or resumed, an
    existing page is kept.
    """
    if not has_run and run.report.exists():
        return
    flaw = ""
    try:
        from flstream.report.page import write_page

        write_page([run.path], is_running=False)
    except FlstreamError as error:
        flaw = str(error)
    except KeyboardInterrupt:
        flaw = f"it was stopped; make one with flstream report {run.path}"
        temporary_of(run.report).unlink(missing_ok=True)
    except Exception as error:  # a defect in a chart must not change the result of the run
        flaw = (
            f"{type(error).__name__}: {error}; flstream report {run.path} says where it was raised"
        )
    if flaw:
        warning = f"warning: no report was made: {flaw}"
        error_console().print(Text(printable(warning), style="yellow"), soft_wrap=True)
    else:
        label = Text("report".ljust(LABEL_WIDTH), style="dim")
        console.print(label + Text(printable(shown_path(run.report))), soft_wrap=True)
