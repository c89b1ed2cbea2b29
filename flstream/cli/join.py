"""``flstream join``: run workers of a run on this machine."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flstream.cli.status import DONE, STOPPED

if TYPE_CHECKING:
    from flstream.engines.node_files import NodeFiles


def join(
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="Where the run has nodes join.")
    ],
    key_file: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="The file with the run's key; it is waited for, like the run."
        ),
    ],
    cpus: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100_000,
            metavar="N",
            help="How many workers this machine has room for.",
            show_default="its cores",
        ),
    ] = None,
    wait: Annotated[
        str, typer.Option(metavar="TIME", help="How long to wait for the run to begin.")
    ] = "60s",
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where to keep the run's files on a machine that does not see the run directory.",
            show_default="a temporary one, removed at the end",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Run workers of a run on this machine: one command on each node of a cluster.

    On one machine: flstream simulate JOB --engine join --bind HOST:PORT --key-file FILE. On each
    node: flstream join HOST:PORT --key-file FILE, by hand, with ssh or with srun; whichever begins
    first waits for the other. The nodes have to have the same versions of flstream, Python, torch
    and NumPy. One that sees the run directory under the same path works in it; another one is sent
    the job's folder, 100 MiB at most.

    It ends with the run; Ctrl-C ends it before that, and the run goes on with the other nodes.
    """
    from flstream.engines.fork_server import new_host
    from flstream.errors import AbortedError, UsageError
    from flstream.units import parse_seconds

    try:
        patience = parse_seconds(wait)
    except ValueError as error:
        raise UsageError(f"--wait {wait}: {error}") from error
    with closing(new_host()) as host:
        host.begin()  # its imports take longest, and overlap with the waiting
        from flstream.simulation.node import NodeSettings, run_node

        def report(files: NodeFiles) -> None:
            if not quiet:
                where = "the run in" if files.sees_run else "a run, with its files in"
                typer.echo(f"joined {where} {files.job.run} as {files.job.node}")

        room = cpus or len(os.sched_getaffinity(0))
        try:
            own = folder and folder.absolute()
            settings = NodeSettings(address, key_file.absolute(), room, patience, own)
            left = run_node(settings, host, report)
        except AbortedError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(STOPPED) from error
    if not quiet:
        typer.echo("the run is over")
        if left.count:
            from flstream.report.text import counted

            typer.echo(
                f"{counted(left.count, 'file')} that training code left in its working folders "
                f"went with them, such as {left.first}; keep them with --folder"
            )
    raise typer.Exit(DONE)
