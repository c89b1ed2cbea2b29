"""``flstream inspect``: describe, compare and verify checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flstream.cli import options
from flstream.errors import UsageError


def inspect(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A .safetensors, .pt, .pth, .bin or .npz file, the .index.json of shards, or a "
            "run directory.",
        ),
    ],
    stats: Annotated[
        bool,
        typer.Option(
            "--stats", help="Minimum, maximum, mean, deviation, norm, zeros, NaN, infinite."
        ),
    ] = False,
    diff: Annotated[
        Path | None,
        typer.Option(metavar="OTHER", help="What is different in OTHER, of any format."),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Read and check everything; in a run, the digest too."),
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write the model to a new folder, which from_pretrained or PEFT opens.",
        ),
    ] = None,
    chunk_size: Annotated[
        str, typer.Option(help="Longest frame, a multiple of 16 bytes.", metavar="SIZE")
    ] = "2MiB",
    as_json: options.AsJson = False,
) -> None:
    """Explain a checkpoint without loading it.

    Lists its tensors and what streaming them takes, from its header alone. With --stats, --diff,
    --verify and --export its tensors are read too, range by range: the memory that
    takes does not grow with the model. Of a run directory it also lists its rounds and sites, from
    its journal. On a terminal long names are shortened; through a pipe they are whole.
    """
    from flstream.errors import CheckpointError, LayoutError, SimulationError
    from flstream.inspection.examine import Findings, as_document, examine
    from flstream.inspection.export import Export
    from flstream.inspection.export import export as export_model
    from flstream.report.checkpoint import print_export, print_findings, print_json
    from flstream.report.console import make_console
    from flstream.text import MOST_ON_A_LINE, quotable

    if export is not None and (stats or diff or verify):
        raise UsageError("--export writes the whole model and shows nothing; give it alone")
    frame = options.chunk_size(chunk_size)
    result: Findings | Export
    try:
        if export is not None:
            result = export_model(path, export)
        else:
            result = examine(
                path,
                chunk_size=frame,
                stats=stats,
                diff=diff,
                verify=verify,
            )
    except (CheckpointError, LayoutError, SimulationError) as error:
        # The file is the user's input, so a defect in it is a usage error: exit status 2. A name in
        # a damaged file may have megabytes.
        raise UsageError(quotable(str(error), MOST_ON_A_LINE)) from error
    console = make_console()
    if as_json:
        print_json(console, as_document(result))
    elif isinstance(result, Export):
        print_export(console, result)
    else:
        print_findings(console, result)
