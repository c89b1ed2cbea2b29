"""Runs of a Python program that makes jobs by NVFlare's recipes, or by flstream's."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from flstream.compat.nvflare.names import REASONS, job_names
from flstream.errors import UsageError
from flstream.recipe.sim_env import CommandLine
from flstream.report.console import make_console
from flstream.worker.alias import client_names, install


def run_program(path: Path, words: Sequence[str], line: CommandLine) -> CommandLine:
    """Run a program in this process, with NVFlare's names and what the command line asks of runs.

    Args:
        path: Path of the program.
        words: Its own arguments.
        line: Settings of all runs that it starts.

    Returns:
        The command line, with the summaries of the runs.

    Raises:
        UsageError: It cannot be read, started no run, or ended with a status of its own.
    """
    if not path.is_file():
        raise UsageError(f"there is no program {path}; check the path")
    console = make_console()
    console.quiet = line.quiet
    console.print(
        f"{path.name} is a Python program: NVFlare's names in it are flstream's",
        style="dim",
        soft_wrap=True,
    )
    # With --json, stdout is for one document.
    output = sys.stderr if line.as_json else sys.stdout
    with line.in_use(), _as_main(path, words), redirect_stdout(output):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as ended:
            if ended.code not in (None, 0):
                raise UsageError(f"{path.name} ended with {ended.code!r}") from None
        except ImportError as error:
            # The run's own code was imported by its processes; this is of the program.
            raise UsageError(f"{path.name} cannot be run: {error}") from error
    if not line.summaries:
        raise UsageError(
            f"{path.name} has started no run; it should call execute(SimEnv(...)) of a recipe, or "
            "simulator_run() of a job; to run a job file, name that or its folder"
        )
    return line


@contextmanager
def _as_main(path: Path, words: Sequence[str]) -> Iterator[None]:
    """Make this process look like one of the program's, with NVFlare's names."""
    before = sys.argv, sys.path[:], sys.meta_path[:]
    install("nvflare", {**client_names(), **job_names()}, REASONS)
    sys.argv = [str(path), *words]
    sys.path.insert(0, str(path.absolute().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.meta_path[:] = before
        for name in [name for name in sys.modules if name.partition(".")[0] == "nvflare"]:
            del sys.modules[name]
