"""The report at the end of a run; an error in it never changes the result of the run."""

from __future__ import annotations

from contextlib import suppress

from rich.console import Console
from rich.text import Text

from flstream.errors import FlstreamError
from flstream.report.console import error_console
from flstream.report.text import shown_path
from flstream.runs.run_directory import RunDirectory
from flstream.runs.small_files import temporary_of
from flstream.text import printable

_LABEL_WIDTH = 15


def leave_report(run: RunDirectory, console: Console, *, has_run: bool) -> None:
    """Write the report of a run and print its path, or a warning if that fails.

    Args:
        run: run directory of a run that has ended.
        console: console for the path; the warning goes to stderr.
        has_run: whether the run has just been run or resumed. If not, an existing report is kept.
    """
    if not has_run and run.report.exists():
        return
    try:
        flaw = _write(run)
    except KeyboardInterrupt:
        flaw = f"it was stopped; make one with flstream report {run.path}"
        with suppress(OSError):
            temporary_of(run.report).unlink(missing_ok=True)
    if flaw:
        warning = f"warning: no report was made: {flaw}"
        error_console().print(Text(printable(warning), style="yellow"), soft_wrap=True)
    else:
        label = Text("report".ljust(_LABEL_WIDTH), style="dim")
        console.print(label + Text(printable(shown_path(run.report))), soft_wrap=True)


def _write(run: RunDirectory) -> str:
    """Write the report; return the error message if that fails, else an empty text."""
    try:
        # Imported only at the end of the run, since matplotlib's import takes a third of a second.
        from flstream.report.html.run_page import write_report

        write_report(run.path)
    except FlstreamError as error:
        return str(error)
    except Exception as error:  # a defect in a chart must not change the result of the run
        name = type(error).__name__
        return f"{name}: {error}; flstream report {run.path} tells where it was raised"
    return ""
