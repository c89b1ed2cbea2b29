"""``flstream report``: write a run's page, or a comparison of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="A run directory, a folder of runs, or several of them to compare.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The page. A file that is no page of this command is never replaced.",
            show_default="RUN/report.html; of several, comparison.html",
        ),
    ] = None,
    group_by: Annotated[
        str,
        typer.Option(
            metavar="KEYS",
            help="Dotted keys or sections, with commas: runs with the same values are one line "
            "with a band.",
            show_default="all keys but that of --over",
        ),
    ] = "",
    over: Annotated[
        str, typer.Option(metavar="KEY", help="The key in which the runs of a line differ.")
    ] = "seed",
) -> None:
    """Make a run's page anew, or compare several runs, or all runs of a folder, on one page.

    A page is one file that loads nothing: metrics over rounds, memory over time, where the time
    went, transfers, sites, settings, versions. Any run can be reported, however it ended. Runs that
    differ in their seed alone are compared by their mean and spread. A comparison has a CSV file
    beside it. Prints the path of the page.
    """
    from flstream.report.console import make_console
    from flstream.report.page import runs_below, write_page
    from flstream.runs.run_directory import RunDirectory

    keys = [key.strip() for key in group_by.split(",") if key.strip()]
    compared = [
        path
        for run in runs
        for path in (runs_below(run) if run.is_dir() and not RunDirectory(run).is_run else [run])
    ]
    path = write_page(compared, output, group_by=keys, over=over)
    make_console().out(str(path), highlight=False)
