"""Export of a model as a folder for ``from_pretrained``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from flstream.errors import CheckpointError, LayoutError, UsageError
from flstream.inspection.examine import model_at
from flstream.inspection.runs import run_of, verify_checkpoint
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.composed import composed, part_of
from flstream.model.copy import copy
from flstream.model.formats import CheckpointFile, open_checkpoint
from flstream.model.lora import lora_pairs, residual_pair
from flstream.model.memory import MemoryBody
from flstream.model.order import ORDER, in_order
from flstream.model.source import Scratch, Source, view_of
from flstream.runs.model_files import BASE, body_file
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.export_files import kept_files, kept_prefix

if TYPE_CHECKING:
    import torch


_READ_BYTES = 1 << 20
_MODEL, _ADAPTER = "model.safetensors", "adapter_model.safetensors"


class Export(msgspec.Struct, frozen=True):
    """An exported model."""

    path: Path  # of the model
    files: Sequence[Path]  # that were written
    tensors: int
    bytes: int  # of the files


def export(path: Path, to: Path) -> Export:
    """Write a model as a folder that other programs open.

    It gets ``model.safetensors``, or ``adapter_model.safetensors`` if the model is the
    adapter of one, and what the run has kept of the model and its tokenizer. A tensor that has
    several names is written once, under the first that the model has. Memory holds a few blocks.
    An adapter with a residual beside it is written as one of a larger rank, from memory. One whose
    residuals were added to its base has that beside it, ``base.safetensors``.

    Args:
        path: Path of a checkpoint of any format, or of a run directory: its final model then.
        to: A new or empty folder.

    Raises:
        CheckpointError: The model cannot be read, is not what its run wrote, or nothing can be
            written.
        SimulationError: The run's journal is damaged.
        UsageError: The folder has files, or is a file.
    """
    file = open_checkpoint(model_at(path))
    location = run_of(file.path)
    run = location[0] if location else RunDirectory(file.path.absolute().parent)
    is_best = file.path.name == run.best_model.name and run.events.is_file()
    if location:  # the run's journal has no digest of best.safetensors
        verify_checkpoint(file)
    folder = run.export_files if location or is_best else None
    names = _exported_names(file, kept_prefix(folder) if folder else "")
    try:
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
        raise UsageError(f"{to} is a file; export to a folder")
    to.mkdir(parents=True, exist_ok=True)
    beside = kept_files(folder) if folder is not None else []
    files = [Path(shutil.copyfile(path, to / path.name)) for path in beside]
    config, written = to / "adapter_config.json", cast(Source, file)
    weights = to / (_ADAPTER if config.exists() else _MODEL)
    residual, base = bodies_of_adapter(file.path, run)
    if base is not None:
        files.append(_write_base(base, to))
    if residual is not None and config.exists() and _has_numbers(FileSource(residual)):
        written = joined_adapter(file, residual, config)
    # Only the first of tied names is written, as libraries do that tie them again.
    first = {tensor: name for name, tensor in reversed([*names.items()])}
    places = {first[spec.name]: (written, spec) for spec in written.layout.tensors}
    write_checkpoint(weights, composed(places), {"format": "pt"})
    return [*files, weights]


def bodies_of_adapter(model: Path, run: RunDirectory) -> tuple[Path | None, Path | None]:
    """Return the files of the residual and of the base beside a run's adapter; None for none.

    The model of a round may be a second name of the one before, to whose base its residual was
    added; the last one counts, unless a file was named that has its own.
    """
    from flstream.job.bodies import RESIDUAL  # with which the job file's parser comes

    for checkpoint in [model, *sorted(run.checkpoints.glob("round-*.safetensors"), reverse=True)]:
        residual, base = (body_file(checkpoint, name) for name in (RESIDUAL, BASE))
        if residual.is_file() and checkpoint.samefile(model):
            return residual, base if base.is_file() else None
    return None, None


def _has_numbers(source: Source) -> bool:
    """Return whether a body has any byte that is not 0."""
    scratch, ranges = Scratch(), source.layout.ranges(_READ_BYTES)
    return any(bytes(view_of(source, *place, scratch)).strip(b"\0") for place in ranges)


def _write_base(base: Path, to: Path) -> Path:
    """Write the base of an adapter, which is no longer the one that it was built around."""
    from flstream.model.shared_base import PADDING

    source = FileSource(base)
    names = {name for name in source.layout.by_name if not name.startswith(PADDING)}
    path = to / "base.safetensors"
    write_checkpoint(path, part_of(source, names), {"format": "pt"})
    return path


def joined_adapter(file: Source, residual: Path, config: Path) -> MemoryBody:
    """Return an adapter of a rank that holds a residual, too, and note it in PEFT's configuration.

    ``B @ A`` of it is the product of the adapter plus that of the residual. Its ``lora_alpha`` is
    as many times larger as its rank is, so that both are multiplied by what the adapter was.

    Args:
        file: The adapter.
        residual: File of the residual.
        config: ``adapter_config.json`` of the adapter, which is rewritten.

    Raises:
        CheckpointError: It is no adapter of one rank, or the residual is of another one.
    """
    import torch

    values = json.loads(config.read_text())
    tensors, rest = _tensors(file), _tensors(FileSource(residual))
    try:
        pairs = lora_pairs(tensors)
        most = max(len(rest[residual_pair(layer).a]) for layer in pairs)
    except (LayoutError, KeyError) as error:
        raise CheckpointError(f"{residual} is no residual of this adapter: {error}") from error
    ranks = {len(tensors[pair.a]) for pair in pairs.values()}
    if ranks != {values["r"]} or values.get("rank_pattern") or values.get("alpha_pattern"):
        raise CheckpointError(
            f"the adapter has layers of several ranks or scalings, and {residual.name} lies beside "
            "it, so it cannot be exported as one; add the residual's products to the base instead"
        )
    joined = dict(tensors)
    for layer, pair in pairs.items():
        more = residual_pair(layer)
        a, b, lacking = rest[more.a], rest[more.b], most - len(rest[more.a])
        a = torch.nn.functional.pad(a, (0, 0, 0, lacking)).to(tensors[pair.a])
        b = torch.nn.functional.pad(b, (0, lacking)).to(tensors[pair.b])
        joined[pair.a] = torch.cat([tensors[pair.a], a], 0)
        joined[pair.b] = torch.cat([tensors[pair.b], b], 1)
    rank = values["r"] + most
    root = 0.5 if values.get("use_rslora") else 1.0  # of its rank, as PEFT scales by it
    values["lora_alpha"] *= (rank / values["r"]) ** root
    values["r"] = rank
    config.write_text(json.dumps(values, indent=2))
    return MemoryBody.of(joined)


def _tensors(source: Source) -> Mapping[str, torch.Tensor]:
    body = MemoryBody.allocate(source.layout)
    copy(source, body)
    tensors: Mapping[str, Any] = body.tensors
    return tensors
