"""The Typer application with all commands.

Neither this module nor the top level of a command's module imports anything that imports numpy
or torch: their import takes a second, and `flstream --help` must answer at once.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc
from typing import Annotated

import typer

from flstream import __version__
from flstream.cli.bench import bench
from flstream.cli.debug import debug
from flstream.cli.init import init
from flstream.cli.inspect import inspect
from flstream.cli.report import report
from flstream.cli.runs import runs
from flstream.cli.simulate import simulate
from flstream.cli.sweep import sweep
from flstream.cli.validate import validate


def _paragraphs(command: Callable[..., None]) -> str:
    """Return a command's docstring with each paragraph on one line, for Typer to wrap."""
    paragraphs = cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


app = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=True,
    # Expected errors are printed as sentences. Any other exception is a defect, and a bug report
    # needs its plain traceback.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (init, validate, simulate, sweep, runs, debug, report, inspect, bench):
    app.command(help=_paragraphs(command))(command)


@app.callback()
def flstream(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Simulate federated learning on models larger than memory.

    Exit status: 0 done, 1 the job failed, 2 what was asked for is wrong, 130 stopped by Ctrl-C.
    """
    if version:
        typer.echo(f"flstream {__version__}")
        raise typer.Exit
