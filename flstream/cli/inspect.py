"""``flstream inspect``: explain a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def inspect(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="A .safetensors file, or a run directory: its latest model."
        ),
    ],
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON document, with every name and byte in full."),
    ] = False,
) -> None:
    """List the tensors of a checkpoint without loading it.

    Only the header of the file is read, whatever the size of the model. On a terminal long names
    are shortened in the middle; through a pipe they are whole.
    """
    from flstream.errors import CheckpointError, UsageError
    from flstream.report.checkpoint import inspect_checkpoint, print_inspection
    from flstream.report.console import make_console

    try:
        inspection = inspect_checkpoint(_checkpoint_at(path))
    except CheckpointError as error:
        # The file is what was asked about, so its flaws are a matter of what was asked for.
        raise UsageError(str(error)) from error
    console = make_console()
    if as_json:
        console.out(json.dumps(inspection.document(), indent=2), highlight=False)
    else:
        print_inspection(console, inspection)


def _checkpoint_at(path: Path) -> Path:
    """The file that is meant: the path itself, or the latest model of a run directory."""
    from flstream.errors import UsageError
    from flstream.simulator.run_directory import RunDirectory

    if not path.exists():
        raise UsageError(f"there is no {path}; check the path")
    if path.is_file():
        return path
    if not path.is_dir():
        # Opening a pipe or a device would wait for somebody to write to it.
        raise UsageError(f"{path} is neither a file nor a run directory")
    run = RunDirectory(path)
    if run.final_model.is_file():
        return run.final_model
    rounds = sorted(run.checkpoints.glob("round-*.safetensors"))
    if not rounds:
        raise UsageError(f"{path} is a folder without a model in it; name a .safetensors file")
    return rounds[-1]
