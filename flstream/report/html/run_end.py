"""The report that a run ends with. Whatever becomes of it, the run's own result stands."""

from __future__ import annotations

from contextlib import suppress

from rich.console import Console
from rich.text import Text

from flstream.errors import FlstreamError
from flstream.report.console import error_console
from flstream.report.text import printable, shown_path
from flstream.simulator.files.run_directory import RunDirectory
from flstream.simulator.files.small_files import temporary_of

_LABEL_WIDTH = 15


def leave_report(run: RunDirectory, console: Console, *, has_run: bool) -> None:
    """Write a run's report and say where it is; or say in a line why there is none.

    Args:
        run: a run that has ended.
        console: for where it is.
        has_run: whether the run has just gone on. If not, a report that is there is left.
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
    """Write the report; return why that was not possible, or nothing."""
    try:
        # matplotlib takes a third of a second to import: only now that the run has ended.
        from flstream.report.html.run_page import write_report

        write_report(run.path)
    except FlstreamError as error:
        return str(error)
    except Exception as error:  # a chart that cannot be drawn must not cost a run its result
        name = type(error).__name__
        return f"{name}: {error}; flstream report {run.path} tells where it was raised"
    return ""
