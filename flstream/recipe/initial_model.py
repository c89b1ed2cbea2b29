"""What a recipe's ``model`` may be, and what stands for it in a job file."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

from flstream.errors import UsageError
from flstream.model.body import Source
from flstream.model.checkpoint import write_checkpoint
from flstream.model.fitted import Differences, Fitted
from flstream.model.formats.opening import open_checkpoint
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.model.modules import exchanged_state
from flstream.model.order import ORDER, order_text
from flstream.recipe.nvflare_names import NUMPY_KEY, class_and_args
from flstream.simulation.export_files import keep_export_files
from flstream.simulation.factory import MadeModel

WEIGHTS = "model.safetensors"
_DIGEST_DIGITS = 12
_ALLOWED = (
    "a torch module, a dict of tensors or arrays, a dict with class_path and args, a "
    '"module:name", or a function or class at the top level of a file'
)


class Weights(NamedTuple):
    """Initial weights in memory, to be written into a file that ``model.initial`` names.

    Attributes:
        made: The tensors, with the module that they are of.
        checkpoint: Path of a file whose values they have instead of their own; None for their own.
    """

    made: MadeModel
    checkpoint: Path | None = None

    def write(self, folder: Path) -> Path:
        """Write the weights, and what goes with a pretrained model, into a new folder.

        Returns:
            The path of the file with the weights.

        Raises:
            UsageError: The checkpoint is not of this model.
            LayoutError: A tensor cannot be streamed.
            CheckpointError: A file cannot be read or written.
        """
        self._write(folder)
        return folder / WEIGHTS

    def write_once(self, root: Path) -> Path:
        """Write them into a folder of a name that follows from their bits, unless it is there.

        Args:
            root: Folder for folders of weights.

        Returns:
            The path of the file with the weights.
        """
        try:
            root.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=root))
        except OSError as error:
            raise UsageError(
                f"the initial weights cannot be written to {root}: {error.strerror}; give SimEnv "
                "another workspace_root"
            ) from error
        try:
            folder = root / _name_of(scratch, self._write(scratch))
            with suppress(OSError):  # another program may be writing the same
                if not folder.exists():
                    os.replace(scratch, folder)
            if not (folder / WEIGHTS).exists():
                raise UsageError(f"{folder} is not as flstream made it; remove it")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return folder / WEIGHTS

    def _write(self, folder: Path) -> str:
        """Write everything; return what the file of weights follows from, as text."""
        folder.mkdir(parents=True, exist_ok=True)
        state = self.made.state
        body = MemoryBody.of(state)
        order = order_text(body.layout, state)
        metadata = {"format": "pt", **({ORDER: order} if order else {})}
        source = body if self.checkpoint is None else _fitted(body.layout, self.checkpoint)
        digest = write_checkpoint(folder / WEIGHTS, source, metadata)
        keep_export_files(folder, self.made, None)
        return f"{digest} {order}"


def _name_of(folder: Path, weights: str) -> str:
    """Return a name that follows from weights, given as text, and all that lies beside them."""
    found = hashlib.sha256(weights.encode())
    for path in sorted(folder.iterdir()):
        if path.name != WEIGHTS:
            found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()[:_DIGEST_DIGITS]


def _fitted(layout: Layout, checkpoint: Path) -> Source:
    """Return the values of a file under a model's names, ties and dtypes."""
    given = open_checkpoint(checkpoint)
    differences = Differences.between(layout, given.layout)
    if differences:
        raise UsageError(
            f"initial_ckpt: {differences.sentence(str(checkpoint))}; give weights of this model"
        )
    return Fitted(layout, given, str(checkpoint))


class FactoryCall(NamedTuple):
    """A factory by its name, with its arguments.

    Attributes:
        named: ``module:callable`` or ``path/to/file.py:callable``.
        args: Keyword arguments.
    """

    named: str
    args: Mapping[str, Any]


def initial_model(model: Any) -> Weights | FactoryCall:
    """Return what stands for a recipe's model in a job file.

    An instance keeps its weights, bit for bit. A factory is called by each run, with the job's seed
    and in a process of its own, so the model need not fit in this process.

    Args:
        model: A torch module; a dict of tensors or arrays; ``{"class_path": "model.Net", "args":
            {...}}``; ``"module:callable"``; a function or class of a file; an array or nested list.

    Raises:
        UsageError: It is none of these.
    """
    import torch

    if isinstance(model, tuple) and model and isinstance(model[0], torch.nn.Module):
        return Weights(MadeModel(exchanged_state(model[0]), model))
    if isinstance(model, torch.nn.Module):
        return Weights(MadeModel(exchanged_state(model), (model,)))
    if isinstance(model, str):
        if ":" not in model:
            raise UsageError(
                f"model = {model!r} is no module:callable; for weights on disk give "
                "initial_ckpt = their path"
            )
        return FactoryCall(model, {})
    if isinstance(model, Mapping):
        return _of_dict(model)
    if isinstance(model, type | FunctionType):
        return FactoryCall(_place(model), {})
    return _of_array(model)


def _of_dict(model: Mapping[Any, Any]) -> Weights | FactoryCall:
    import numpy as np
    import torch

    if model and all(isinstance(each, torch.Tensor | np.ndarray) for each in model.values()):
        return Weights(MadeModel({str(name): each for name, each in model.items()}, (model,)))
    found = class_and_args(model)
    if found is None:
        raise UsageError(
            f"the model {dict(model)} is neither a dict of tensors nor "
            '{"class_path": "model.Net", "args": {...}}; give one of these'
        )
    return FactoryCall(*found)


def _of_array(model: Any) -> Weights:
    import numpy as np

    array = model
    if isinstance(model, list | tuple):
        try:
            array = np.array(model, dtype=np.float32)
        except (TypeError, ValueError):
            array = None
    if not isinstance(array, np.ndarray):
        raise UsageError(f"{type(model).__name__} is no model; give {_ALLOWED}, or an array")
    return Weights(MadeModel({NUMPY_KEY: array}, (model,)))


def _place(made_by: type | FunctionType) -> str:
    """Return the place of a function or class, as a job file names it."""
    name = made_by.__qualname__
    if not name.isidentifier():
        raise UsageError(
            f"model = {name} is not at the top level of a file, where a run could find it; give "
            "an instance of it"
        )
    module = sys.modules.get(made_by.__module__)
    path = getattr(module, "__file__", None)
    if path is None or not os.path.isfile(path):
        raise UsageError(
            f"model = {name} is of no file, where a run could find it; give an instance of it"
        )
    return f"{os.path.abspath(path)}:{name}"
