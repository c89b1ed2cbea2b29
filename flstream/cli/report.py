"""``flstream report``: write the HTML page of a run, or a comparison of several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_COMPARISON = Path("comparison.html")


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="A run directory, or several to compare.", show_default=False
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
) -> None:
    """Make a run's report anew, or compare several runs on one page.

    The page is one file that loads nothing: metrics over rounds, memory over time, where the time
    went, transfers, sites, settings, versions. Any run can be reported, however it ended. Prints
    the path of the page.
    """
    from flstream.report.console import make_console
    from flstream.report.html.comparison_page import write_comparison
    from flstream.report.html.run_page import write_report

    if len(runs) == 1:
        path = write_report(runs[0], output)
    else:
        path = write_comparison(runs, output or _COMPARISON)
    make_console().out(str(path), highlight=False)
