"""``flstream runs``: list the runs below a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

# Columns of status, rounds, best and time; and of a name beside them on a narrow terminal.
_FACTS, _LEAST_NAME = 44, 24


def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder with runs, at any depth.")
    ] = Path("runs"),
) -> None:
    """List runs: status, job, rounds, best score, time, and how to resume those that are not over.

    The newest run comes first. Runs of one sweep stay together, in the order of their settings.
    For a page with their charts, see flstream report DIR.
    """
    from flstream.report.console import make_console, print_tables
    from flstream.report.page import newest_first, runs_below
    from flstream.report.running import may_go_on
    from flstream.report.table import Link
    from flstream.report.text import resume_command
    from flstream.report.views import index_table

    records, console = newest_first(runs_below(folder)), make_console()
    names = [Link(str(run.path.relative_to(folder.absolute())), "") for run in records]
    table = index_table(records, names)
    first, *others = table.columns
    # Names are to be copied, so most other columns give way to them, but for status and best.
    longest = max(len(name.text) for name in names)
    whole = first._replace(least=min(longest, max(console.width - _FACTS, _LEAST_NAME)))
    print_tables(console, replace(table, columns=[whole, *others]))
    unfinished = [run for run in records if run.status != "running" and may_go_on(run.summary)]
    if unfinished:
        console.print()
    for run in unfinished:
        console.out(f"resume with: {resume_command(run.path)}")
