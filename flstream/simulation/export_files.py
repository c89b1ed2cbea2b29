"""What an export has beside the weights: a model's configuration, and its tokenizer."""

from __future__ import annotations

import copy
import shutil
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flstream.model.modules import is_adapted
from flstream.runs.export_record import ExportRecord

# Files of these names lie beside the weights of a pretrained model.
_BESIDE = (
    "adapter_config.json",
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "preprocessor_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)


def keep_export_files(folder: Path, parts: Sequence[Any], initial: Path | None) -> None:
    """Keep what goes with a model: of its factory, and from beside its initial weights.

    It does not fail: a model can be trained without; what goes wrong is printed.

    Args:
        folder: Folder for the files. None is made where there is nothing to keep.
        parts: What the factory returned: a model, and whatever came with it.
        initial: File of the initial weights; None without one.
    """
    try:
        for part in parts:
            _keep(folder, part)
        if initial is not None:
            for name in _BESIDE:
                path = initial.parent / name
                if path.is_file() and not (folder / name).exists():
                    folder.mkdir(exist_ok=True)
                    shutil.copyfile(path, folder / name)
    except Exception:
        traceback.print_exc()


class _Pretrained(NamedTuple):
    """A model that can be opened with ``from_pretrained``, and the prefix of its tensors' names."""

    model: Any
    prefix: str


def _keep(folder: Path, part: Any) -> None:
    found = _pretrained(part)
    if found is None:
        if hasattr(part, "save_pretrained"):  # a tokenizer, or what prepares images
            folder.mkdir(exist_ok=True)
            part.save_pretrained(folder)
        return
    folder.mkdir(exist_ok=True)
    ExportRecord(found.prefix).write(folder)
    model = found.model
    if is_adapted(model):
        config = copy.deepcopy(model.peft_config[model.active_adapter])
        config.inference_mode = True
        config.save_pretrained(folder)
        return
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.dtype = str(model.dtype).removeprefix("torch.")
    config.save_pretrained(folder)
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.save_pretrained(folder)


def _pretrained(part: Any) -> _Pretrained | None:
    """Return the pretrained model that a module is, or is made around."""
    import torch

    if not isinstance(part, torch.nn.Module):
        return None
    if _is_pretrained(part):
        return _Pretrained(part, "")
    within = [(name, each) for name, each in part.named_children() if _is_pretrained(each)]
    if len(within) != 1:
        return None
    [(name, model)] = within
    return _Pretrained(model, f"{name}.")


def _is_pretrained(module: Any) -> bool:
    return is_adapted(module) or (
        hasattr(module, "save_pretrained") and hasattr(getattr(module, "config", None), "to_dict")
    )
