"""Models that recipes take, and the section ``model`` for each."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from flstream.errors import CheckpointError, UsageError
from flstream.model.checkpoint import write_checkpoint
from flstream.model.memory import MemoryBody
from flstream.model.modules import exchanged_state
from flstream.model.order import ORDER, order_text
from flstream.simulation.export_files import MadeModel, keep_export_files

NUMPY_KEY = "numpy_key"
"""Name of the one array of a NumPy model that has no names."""
WEIGHTS = "weights"
"""Key of a recipe's section ``model`` with weights in memory, in place of a factory."""


def write_weights(model: MadeModel, root: Path) -> Path:
    """Write weights and a pretrained model's other files; return the weights' path.

    They come into a folder below the root that their digest names, once.
    """
    body = MemoryBody.of(model.state)
    order = order_text(body.layout, model.state)
    metadata = {"format": "pt", **({ORDER: order} if order else {})}
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=root) as scratch:
            path = Path(scratch) / "model.safetensors"
            digest = write_checkpoint(path, body, metadata)
            folder = Path(os.path.abspath(root / digest[:12]))
            folder.mkdir(exist_ok=True)
            os.replace(path, folder / path.name)
    except (OSError, CheckpointError) as error:
        raise UsageError(
            f"the initial weights cannot be written to {root}: {error}; give another folder"
        ) from error
    keep_export_files(folder, model, None)
    return folder / path.name


def initial_model(model: Any) -> dict[str, Any]:
    """Return the section of a job file for a recipe's model.

    An instance keeps its weights, bit for bit. A factory is called by each run, with the job's seed
    and in a process of its own, so the model need not fit in this process.
    """
    import numpy as np
    import torch

    parts = model if isinstance(model, tuple) else (model,)
    if parts and isinstance(parts[0], torch.nn.Module):
        return {WEIGHTS: MadeModel(exchanged_state(parts[0]), parts)}
    if isinstance(model, str | type | FunctionType):
        return {"factory": code_place(model)}
    arrays = torch.Tensor | np.ndarray
    if isinstance(model, Mapping):
        if not model or not all(isinstance(value, arrays) for value in model.values()):
            return class_section(model)
        return {WEIGHTS: MadeModel({str(k): v for k, v in model.items()}, (model,))}
    if isinstance(model, list | np.ndarray):
        array = np.asarray(model, dtype=np.float32 if isinstance(model, list) else None)
        return {WEIGHTS: MadeModel({NUMPY_KEY: array}, (model,))}
    raise ValueError(
        "give a torch module, a dict of tensors or arrays, a dict with class_path and args, a "
        '"module:name", a function or class at the top level of a file, or an array'
    )


def class_section(model: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the section for ``{"class_path": "model.Net", "args": {...}}``."""
    path, args = model.get("class_path", model.get("path")), model.get("args") or {}
    module, dot, name = path.rpartition(".") if isinstance(path, str) else ("", "", "")
    if not dot or model.keys() - {"class_path", "path", "args", "config_type"}:
        raise ValueError('give {"class_path": "model.Net", "args": {...}}')
    return {"factory": f"{module}:{name}", **({"args": args} if args else {})}


def code_place(code: str | type | FunctionType) -> str:
    """Return the place of a function or class, as a job file names it."""
    if isinstance(code, str):
        if ":" not in code:
            raise ValueError("give module:name; for weights on disk give initial_ckpt = their path")
        return code
    path = getattr(sys.modules.get(code.__module__), "__file__", None)
    if path is None or not os.path.isfile(path) or not code.__qualname__.isidentifier():
        raise ValueError(
            "it is not at the top level of a file, where a run could find it; give an instance"
        )
    return f"{os.path.abspath(path)}:{code.__qualname__}"
