"""Export of a model to what others open: a folder for ``from_pretrained``, or a file of torch."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flstream.errors import CheckpointError, UsageError
from flstream.inspection.examine import model_at
from flstream.inspection.run_outline import run_of
from flstream.inspection.verification import verify
from flstream.model.checkpoint import write_checkpoint
from flstream.model.fitted import Renamed
from flstream.model.formats.file import CheckpointFile
from flstream.model.formats.opening import open_checkpoint
from flstream.model.order import ORDER, in_order
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.export_files import ExportRecord, kept_files

_TORCH = (".pt", ".pth", ".bin")
_MODEL, _ADAPTER = "model.safetensors", "adapter_model.safetensors"


class Export(NamedTuple):
    """What was exported.

    Attributes:
        source: Path of the model.
        files: Paths of the files that were written.
        tensors: Number of the tensors.
        bytes: Size of the files in bytes.
    """

    source: Path
    files: tuple[Path, ...]
    tensors: int
    bytes: int

    def document(self) -> dict[str, Any]:
        """Convert the record to JSON."""
        return {
            "path": str(self.source),
            "files": [str(path) for path in self.files],
            "tensors": self.tensors,
            "bytes": self.bytes,
        }


def export(path: Path, to: Path) -> Export:
    """Write a model where others open it.

    A folder gets ``model.safetensors``, or ``adapter_model.safetensors`` if the model is the
    adapter of one, and what the run has kept of the model and its tokenizer. A tensor that has
    several names is written once, under the first that the model has. Memory holds a few blocks.
    For a file of torch, a state dict with all names, memory holds the model.

    Args:
        path: Path of a checkpoint of any format, or of a run directory: its final model then.
        to: A new or empty folder; or a file with the suffix .pt, .pth or .bin, which is replaced.

    Raises:
        CheckpointError: The model cannot be read, is not what its run wrote, or nothing can be
            written.
        UsageError: The folder has files.
    """
    found = open_checkpoint(model_at(path))
    run = _run_of(found.path)
    if run is not None:
        verify(found)  # with the digest in the run's journal, which has none of best.safetensors
    folder = None if run is None else run.export_files
    prefix = "" if folder is None else ExportRecord.read(folder).prefix
    names = _exported_names(found, prefix)
    try:
        if to.suffix.lower() in _TORCH:
            _write_state_dict(found, names, to)
            files = [to]
        else:
            files = _write_folder(found, names, folder, to)
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or to} cannot be written: {error.strerror}; export to another place"
        ) from error
    size = sum(each.stat().st_size for each in files)
    return Export(found.path, tuple(files), len(found.layout.tensors), size)


def _run_of(path: Path) -> RunDirectory | None:
    """Return the run that a file is a model of; None if it is of none."""
    found = run_of(path)
    if found is not None:
        return found.run
    run = RunDirectory(path.absolute().parent)
    return run if path.name == run.best_model.name and run.events.is_file() else None


def _exported_names(file: CheckpointFile, prefix: str) -> dict[str, str]:
    """Return the names to export, in the model's order, with those of the file."""
    layout = file.layout
    own = {name: name for name in layout.by_name} | dict(layout.aliases)
    ordered = in_order(own, layout, file.metadata.get(ORDER, ""))
    if not all(name.startswith(prefix) for name in ordered):
        prefix = ""
    return {name.removeprefix(prefix): there for name, there in ordered.items()}


def _write_folder(
    file: CheckpointFile, names: Mapping[str, str], kept: Path | None, to: Path
) -> list[Path]:
    if to.is_dir() and any(to.iterdir()):
        raise UsageError(f"{to} has files in it; export to a new folder, or to an empty one")
    if to.exists() and not to.is_dir():
        raise UsageError(f"{to} is a file; export to a folder, or to a file named *.pt")
    to.mkdir(parents=True, exist_ok=True)
    files = []
    for path in kept_files(kept) if kept is not None else []:
        files.append(to / path.name)
        shutil.copyfile(path, files[-1])
    is_adapter = (to / "adapter_config.json").exists()
    weights = to / (_ADAPTER if is_adapter else _MODEL)
    # Of tied names the first is written, as libraries do that tie them again.
    first: dict[str, str] = {}
    for name, there in names.items():
        first.setdefault(there, name)
    write_checkpoint(weights, Renamed(file, first), {"format": "pt"})
    return [*files, weights]


def _write_state_dict(file: CheckpointFile, names: Mapping[str, str], to: Path) -> None:
    import torch

    from flstream.model.copy import copy
    from flstream.model.memory import MemoryBody

    if to.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(to))
    body = MemoryBody.allocate(file.layout)
    copy(file, body)
    temporary = to.with_name(f"{to.name}.tmp")
    try:
        # Opened here, since torch's own errors do not say what the system has said.
        with temporary.open("wb") as stream:
            torch.save({name: body.tensors[there] for name, there in names.items()}, stream)
        os.replace(temporary, to)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
