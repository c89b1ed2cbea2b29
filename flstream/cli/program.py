"""``flstream simulate job.py``: a Python program that makes its jobs by recipes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from flstream.cli.status import DONE, FAILED, STOPPED

if TYPE_CHECKING:
    from flstream.recipe.sim_env import CommandLine


def simulate_program(path: Path, words: Sequence[str], line: CommandLine) -> int:
    """Run a program, and return the exit status that its runs call for."""
    from flstream.compat.nvflare.program import run_program
    from flstream.report.console import report_error

    try:
        run_program(path, words, line)
    except KeyboardInterrupt:
        typer.echo("stopped; a run that had begun goes on with --resume", err=True)
        return STOPPED
    finally:
        if line.as_json and line.summaries:
            sys.stdout.write(f"{line.summaries[-1].to_json()}\n")
    failed = [summary for summary in line.summaries if summary.status != "finished"]
    for summary in failed:
        report_error(str(summary.error))
    return FAILED if failed else DONE
