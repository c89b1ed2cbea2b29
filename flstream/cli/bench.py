"""``flstream bench``: measure transfer modes, codecs and links side by side."""

from __future__ import annotations

import os
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from flstream.cli import options
from flstream.cli.options import FAILED, STOPPED
from flstream.errors import AbortedError, UsageError

_STDOUT = "-"


def bench(
    model_size: Annotated[
        str, typer.Option(help="Size of the model, such as 256MiB or 5GB.", metavar="SIZE")
    ],
    clients: Annotated[int, typer.Option(help="Number of clients.", min=1, max=64)] = 2,
    modes: Annotated[
        str | None,
        typer.Option(
            help="Modes to compare, with commas: pull, native, map, file.",
            metavar="MODES",
            show_default="pull,native,file, or pull with --codecs",
        ),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(
            help="Link of each client, such as 10Mbit,50ms, or with rates up and down, jitter and "
            "loss: 10Mbit/100Mbit,50ms,5ms,1%. May be repeated; none is no link.",
            metavar="LINK",
        ),
    ] = None,
    codecs: Annotated[
        str | None,
        typer.Option(
            help="Codecs to compare, with commas: all, or cast,topk:0.05,shuffle+zstd.",
            metavar="LIST",
        ),
    ] = None,
    chunk_size: Annotated[
        str,
        typer.Option(
            help="Longest frame, a multiple of 16 bytes; several with commas.", metavar="SIZES"
        ),
    ] = "2MiB",
    tensors: Annotated[
        int | None,
        typer.Option(help="Number of tensors, all of one size.", min=1, show_default="a mix"),
    ] = None,
    repeat: Annotated[
        int | None,
        typer.Option(
            help="Runs of each case; medians count.",
            min=1,
            show_default="3, or 1 beyond 10 GB, over links, and of codecs",
        ),
    ] = None,
    json: Annotated[
        str | None,
        typer.Option(help="Write the figures to this file as JSON; - is stdout.", metavar="FILE"),
    ] = None,
) -> None:
    """Measure transfer modes, codecs and links side by side.

    Runs FedAvg's exchange of a model, without training, between a server and clients in processes
    of their own: every mode at every chunk size, with every list of codecs, over every link, in
    turn. In the mode 'file' clients keep the model in a file. What would need more memory or disk
    than there is here is not run.

    Codecs with a loss are applied to updates, exact ones both ways; in int8/cast, int8 is for
    updates and cast for models. The bench works in the folder runs, on the disk that it measures,
    and leaves nothing there.
    """
    from flstream.bench.cases import make_plan
    from flstream.bench.measuring import document, measure
    from flstream.report.bench_table import print_bench
    from flstream.report.console import error_console, make_console, report_error
    from flstream.simulation.interruption import stoppable

    plan = make_plan(
        options.size("--model-size", model_size),
        clients=clients,
        modes=modes,
        chunk_sizes=[options.chunk_size(part.strip()) for part in chunk_size.split(",")],
        codecs=codecs,
        links=network or [],
        tensors=tensors,
        repeat=repeat,
    )
    named = None if json in (None, _STDOUT) else Path(json)
    if named is not None:
        place = named if named.exists() else named.parent
        if named.is_dir() or not os.access(place, os.W_OK):
            raise UsageError(f"--json {named}: cannot be written; name another file")
    progress = error_console()
    try:
        with stoppable():
            results = measure(plan, Path("runs"), lambda line: progress.print(line, soft_wrap=True))
            text = dumps(document(plan, results), indent=2) + "\n"
            try:
                if named is not None:
                    named.write_text(text, encoding="utf-8")
            except OSError as error:
                raise UsageError(f"the results cannot be written: {error}") from error
    except (KeyboardInterrupt, AbortedError):
        report_error("the bench was stopped")
        raise typer.Exit(STOPPED) from None
    if json == _STDOUT:
        typer.echo(text, nl=False)
    else:
        print_bench(make_console(), plan, results)
    if any(result.has_failed for result in results):
        raise typer.Exit(FAILED)
