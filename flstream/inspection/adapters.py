"""Export of an adapter with the residual beside it, as one adapter of a larger rank."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstream.errors import CheckpointError, LayoutError
from flstream.model.checkpoint import FileSource
from flstream.model.copy import copy
from flstream.model.lora import lora_pairs, residual_pair
from flstream.model.memory import MemoryBody
from flstream.model.source import Source
from flstream.runs.model_files import body_file
from flstream.runs.run_directory import RunDirectory

if TYPE_CHECKING:
    import torch


def residual_beside(model: Path, run: RunDirectory) -> Path | None:
    """Return the file of the residual beside a model of a run; None for none."""
    from flstream.job.bodies import RESIDUAL  # with which the job file's parser comes

    for checkpoint in [model, *sorted(run.checkpoints.glob("round-*.safetensors"))]:
        residual = body_file(checkpoint, RESIDUAL)
        if residual.is_file() and checkpoint.samefile(model):
            return residual
    return None


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
