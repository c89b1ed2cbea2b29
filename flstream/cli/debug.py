"""``flstream debug``: train one site in the foreground, where pdb works."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flstream.cli.options import DONE, FAILED, STOPPED, JobPath, Overrides


def debug(
    job: JobPath,
    site: Annotated[
        str, typer.Option(metavar="SITE", help="Name of the site.", show_default=False)
    ],
    round_number: Annotated[
        int, typer.Option("--round", metavar="K", min=1, help="Round in which it trains.")
    ] = 1,
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Run whose models and states the round begins with; nothing is written there.",
            show_default="the initial model",
        ),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Train one site in this process, in which breakpoint() opens pdb and exceptions are shown.

    The site receives what it received in round K of a run, or the initial model, with the same
    seed. Its code may have changed since. Other sites train only where the workflow makes the
    site's model of theirs, as cyclic does. Nothing is kept.
    """
    from flstream.errors import UsageError
    from flstream.job import load_job
    from flstream.report.console import make_console, report_error
    from flstream.report.text import format_metrics
    from flstream.simulation.debugged_site import debug_site

    if round_number > 1 and run is None:
        raise UsageError("--round goes with --run RUN, whose models it begins with")
    settings = {"engine.type": "inline", "clients.parallel": 1}
    loaded = load_job(job, [*(overrides or ()), "tracking={}", "memory_limit=null"], settings)
    answer = debug_site(loaded, site, round_number, run)
    if answer.failure:
        report_error(f"{site} failed in round {round_number}: {answer.failure}")
        raise typer.Exit(FAILED)
    if answer.weight is None:  # pdb was left with q
        raise typer.Exit(STOPPED)
    metrics = f", {format_metrics(answer.metrics)}" if answer.metrics else ""
    make_console().out(
        f"{site} answered in round {round_number}: weight {answer.weight:g}{metrics}"
    )
    raise typer.Exit(DONE)
