"""``flstream runs``: list the runs below a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder with runs, at any depth.")
    ] = Path("runs"),
) -> None:
    """List runs: status, job, rounds, best score, time, and how to resume those that are not over.

    The newest run comes first. Runs of one sweep stay together, in the order of their settings.
    For a page that compares them, see flstream report DIR.
    """
    from flstream.report.console import make_console, print_tables
    from flstream.report.page import newest_first, runs_below
    from flstream.report.run_record import read_run
    from flstream.report.running import may_go_on
    from flstream.report.text import resume_command
    from flstream.report.views import runs_table
    from flstream.sweep.record import sweep_command

    records = newest_first([read_run(path, is_one_of_many=True) for path in runs_below(folder)])
    console = make_console()
    print_tables(console, runs_table(records, folder, console.width))
    unfinished = [run for run in records if run.status != "running" and may_go_on(run.summary)]
    if unfinished:
        console.print()
    commands = (sweep_command(run.path) or resume_command(run.path) for run in unfinished)
    for command in dict.fromkeys(commands):
        console.out(f"resume with: {command}")
