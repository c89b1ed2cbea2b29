"""Running a job in view: its progress, and at its end tables, facts and page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.text import Text

from flstream.engines.processes import ProcessHost
from flstream.errors import FlstreamError
from flstream.job import Job
from flstream.report import views
from flstream.report.console import LABEL_WIDTH, error_console, print_facts, print_tables
from flstream.report.live.view import watching
from flstream.report.metrics import UNSCORED, last_scored
from flstream.report.site_errors import error_lists, site_errors
from flstream.report.table import STATE_STYLES
from flstream.report.text import (
    counted,
    format_metrics,
    privacy_words,
    resume_command,
    shown_path,
    wrapped,
)
from flstream.runs.run_directory import RunDirectory
from flstream.runs.small_files import temporary_of
from flstream.runs.summary import SiteFailure, Summary
from flstream.simulation.interruption import stoppable
from flstream.simulation.launcher import simulate
from flstream.text import MOST_ON_A_LINE, brief_names, printable, quotable
from flstream.units import format_bytes, format_seconds

_MOST_SCORES, _MOST_ERRORS, _MOST_REASON_LINES = 6, 5, 3


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
            console.out(f"nothing is left to do: the run in {shown_path(run.path)} is finished")
            run.tidy()  # the launcher may have been killed before it did this
            summary = final_summary(run, point)
        else:
            if point is not None:
                after = f"after round {point.round}" if point.round else "from its beginning"
                console.out(f"the run in {shown_path(run.path)} resumes {after}")
            # Inline, pdb and what training code prints have the screen.
            has_screen = not job.engine.is_inline
            with watching(console, has_screen=has_screen) as listener:
                summary = simulate(job, run, listener, resume=point, host=host)
        print_result(console, summary, run)
        with stoppable():
            leave_page(run, console, has_run=not is_finished)
    if resume:
        from flstream.telemetry.memory_limit import remove_leftovers

        remove_leftovers()  # the run's own from before it was killed, as its processes are gone now
    return summary


def leave_page(run: RunDirectory, console: Console, *, has_run: bool) -> None:
    """Write the page of an ended run and print its path, or a warning.

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


def print_result(console: Console, summary: Summary, run: RunDirectory) -> None:
    """Print the tables of a run, its status and the paths of its files."""
    print_tables(
        console,
        views.rounds_of(summary),
        views.transfer_table(summary),
        views.memory_table(summary),
    )
    if summary.memory.peak_total_pss:
        total = format_bytes(summary.memory.peak_total_pss)
        console.print(f"All processes together, shared pages counted once: at most {total}.")
    if own := summary.memory.group_peak_anonymous:
        words = f"at most {format_bytes(own)}, of {summary.settings['memory_limit']}"
        console.print(f"Their group, without cached files: {words} (memory_limit).")
    print_tables(console, views.nodes_table(summary))
    if summary.failures:
        _print_failures(console, summary.failures)
    for warning in summary.warnings:
        console.print()
        console.print(Text(f"warning: {quotable(warning, MOST_ON_A_LINE)}", style="yellow"))
    console.print()
    print_facts(console, _facts(summary, run), console.width)


def _print_failures(console: Console, failures: Sequence[SiteFailure]) -> None:
    """Print errors of sites as sentences, since reasons are long."""
    for title, errors in error_lists(site_errors(failures), failures):
        sentences = [f"{error.who}: {printable(error.reason)}" for error in errors[:_MOST_ERRORS]]
        if (more := len(errors) - _MOST_ERRORS) > 0:
            sentences.append(f"... and {more:,} more errors")
        console.print()
        console.print(Text(title, style="bold"))
        for line in wrapped(sentences, console.width, _MOST_REASON_LINES):
            console.print(Text(line))


def _facts(summary: Summary, run: RunDirectory) -> Iterator[tuple[str, Text]]:
    if summary.best is not None:
        best = format_metrics({summary.best.metric: summary.best.value})
        yield "best round", Text(f"{summary.best.round}, {best}")
    scored, is_received = last_scored(summary), summary.evaluate == "received"
    if scored is not None and is_received:
        yield "last scored", Text(f"{scored[0]}, {_scores(scored[1])}")
        yield "final model", Text(UNSCORED)
    elif scored is not None:
        yield "final model", Text(_scores(scored[1]))
    if summary.privacy is not None:
        yield "privacy", Text(privacy_words(summary.privacy))
    ended = Text(summary.status, style=STATE_STYLES.get(summary.status, ""))
    rounds = counted(summary.rounds_completed, "round")
    times = format_seconds(summary.wall_seconds)
    if isinstance(summary.simulated_seconds, float):
        times += f", {format_seconds(summary.simulated_seconds)} simulated"
    yield "status", ended.append(f" after {rounds}, {times}", "none")
    if summary.ended_early is not None:
        yield "ended early", Text(printable(summary.ended_early))
    if summary.benched:
        yield "asked no more", Text(brief_names(summary.benched, 8))
    if summary.model.base_bytes:
        digest = str(summary.model.base_digest)[:12]
        yield "base", Text(f"{format_bytes(summary.model.base_bytes)}, digest {digest}")
    if summary.status == "finished":
        yield "model", _path(run.final_model)
    elif summary.model.bytes:
        yield "model", _path(run.checkpoint(summary.rounds_completed))
    yield "run directory", _path(run.path)
    if may_go_on(summary):
        yield "resume with", Text(printable(resume_command(run.path)), no_wrap=True)


def may_go_on(summary: Summary) -> bool:
    """Return whether to say how a run is resumed: not of one that failed before any round ended."""
    if summary.status == "failed":
        return summary.rounds_completed > 0
    return summary.status != "finished"


def _scores(metrics: Mapping[str, float | None]) -> str:
    shown = dict(islice(metrics.items(), _MOST_SCORES))
    more = len(metrics) - len(shown)
    return format_metrics(shown) + (f" and {more:,} more" if more else "")


def _path(path: Path) -> Text:
    # A path is never broken over two lines, so that it can be copied.
    return Text(printable(shown_path(path)), no_wrap=True)
