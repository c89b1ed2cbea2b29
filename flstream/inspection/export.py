"""Export of a model as a folder for ``from_pretrained``, or a file of torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec

from flstream.errors import CheckpointError, UsageError
from flstream.inspection.adapters import joined_adapter, residual_beside
from flstream.inspection.examine import model_at
from flstream.inspection.runs import run_of, verify_checkpoint
from flstream.model.checkpoint import write_checkpoint
from flstream.model.composed import composed
from flstream.model.formats.opening import CheckpointFile, open_checkpoint
from flstream.model.order import ORDER, in_order
from flstream.model.source import Source
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.export_files import kept_files, kept_prefix

_TORCH = (".pt", ".pth", ".bin")
_MODEL, _ADAPTER = "model.safetensors", "adapter_model.safetensors"


class Export(msgspec.Struct, frozen=True):
    """An exported model."""

    path: Path  # of the model
    files: Sequence[Path]  # that were written
    tensors: int
    bytes: int  # of the files


def export(path: Path, to: Path) -> Export:
    """Write a model in a form that other programs open.

    A folder gets ``model.safetensors``, or ``adapter_model.safetensors`` if the model is the
    adapter of one, and what the run has kept of the model and its tokenizer. A tensor that has
    several names is written once, under the first that the model has. Memory holds a few blocks.
    An adapter with a residual beside it is written as one of a larger rank, from memory. For a file
    of torch, a state dict with all names, memory holds the model.

    Args:
        path: Path of a checkpoint of any format, or of a run directory: its final model then.
        to: A new or empty folder; or a file with the suffix .pt, .pth or .bin, in the
            place of nothing but a checkpoint.

    Raises:
        CheckpointError: The model cannot be read, is not what its run wrote, or nothing can be
            written.
        SimulationError: The run's journal is damaged.
        UsageError: The file is there and no checkpoint, or the folder has files.
    """
    if (is_file := to.suffix.lower() in _TORCH) and os.path.lexists(to):
        try:
            open_checkpoint(to)
        except CheckpointError as error:
            raise UsageError(
                f"{to} is there already, and is no checkpoint; give --export another name"
            ) from error
    file = open_checkpoint(model_at(path))
    location = run_of(file.path)
    run = location[0] if location else RunDirectory(file.path.absolute().parent)
    is_best = file.path.name == run.best_model.name and run.events.is_file()
    if location:  # the run's journal has no digest of best.safetensors
        verify_checkpoint(file)
    folder = run.export_files if location or is_best else None
    names = _exported_names(file, kept_prefix(folder) if folder else "")
    if is_file and residual_beside(file.path, run) is not None:
        raise UsageError(
            f"{file.path.name} has a residual beside it, of which a state dict has no place; "
            "export to a folder"
        )
    try:
        if is_file:
            _write_state_dict(file, names, to)
            files = [to]
        else:
            files = _write_folder(file, names, folder, to, run)
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or to} cannot be written: {error.strerror}; export to another place"
        ) from error
    size = sum(written.stat().st_size for written in files)
    return Export(file.path, files, len(file.layout.tensors), size)


def _exported_names(file: CheckpointFile, prefix: str) -> dict[str, str]:
    """Return the names to export, in the model's order, with the file's names."""
    layout = file.layout
    own = {name: name for name in layout.by_name} | dict(layout.aliases)
    ordered = in_order(own, layout, file.metadata.get(ORDER, ""))
    if not all(name.startswith(prefix) for name in ordered):
        prefix = ""
    return {name.removeprefix(prefix): tensor for name, tensor in ordered.items()}


def _write_folder(
    file: CheckpointFile, names: Mapping[str, str], folder: Path | None, to: Path, run: RunDirectory
) -> list[Path]:
    if to.is_dir() and any(to.iterdir()):
        raise UsageError(f"{to} has files in it; export to a new folder, or to an empty one")
    if to.exists() and not to.is_dir():
        raise UsageError(f"{to} is a file; export to a folder, or to a file named *.pt")
    to.mkdir(parents=True, exist_ok=True)
    beside = kept_files(folder) if folder is not None else []
    files = [Path(shutil.copyfile(path, to / path.name)) for path in beside]
    config, written = to / "adapter_config.json", cast(Source, file)
    weights = to / (_ADAPTER if config.exists() else _MODEL)
    residual = residual_beside(file.path, run)
    if residual is not None and config.exists():
        written = joined_adapter(file, residual, config)
    # Only the first of tied names is written, as libraries do that tie them again.
    first = {tensor: name for name, tensor in reversed([*names.items()])}
    places = {first[spec.name]: (written, spec) for spec in written.layout.tensors}
    write_checkpoint(weights, composed(places), {"format": "pt"})
    return [*files, weights]


def _write_state_dict(file: CheckpointFile, names: Mapping[str, str], to: Path) -> None:
    import torch

    from flstream.model.copy import copy
    from flstream.model.memory import MemoryBody

    body = MemoryBody.allocate(file.layout)
    copy(file, body)
    temporary = to.with_name(f"{to.name}.tmp")
    try:
        # Opened here, since torch's own errors do not say what the system has said.
        with temporary.open("wb") as stream:
            torch.save({name: body.tensors[tensor] for name, tensor in names.items()}, stream)
        os.replace(temporary, to)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
