"""Files of an export beside the weights: configuration and tokenizer."""

from __future__ import annotations

import copy
import shutil
import traceback
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flstream.model.modules import exchanged_state, is_adapted

# Files of these names lie beside the weights of a pretrained model.
BESIDE = (
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
# File with the prefix of the exchanged names, which those of the pretrained model within lack.
PREFIX = ".prefix"


class MadeModel(NamedTuple):
    """Result of a model factory.

    Attributes:
        state: Tensors of the model, by name.
        parts: Returned objects: the model, and its companions in a tuple.
    """

    state: Mapping[str, Any]
    parts: tuple[Any, ...]


def kept_prefix(folder: Path) -> str:
    """Return a run's kept prefix for exports; empty where names are the model's own."""
    path = folder / PREFIX
    return path.read_text() if path.exists() else ""


def kept_files(folder: Path) -> list[Path]:
    """Return a run's kept files for exports, in the order of their names."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_file() and path.name != PREFIX)


def keep_export_files(folder: Path, factory_model: MadeModel | None, initial: Path | None) -> None:
    """Keep a model's other files, of its factory and from beside its weights.

    It does not fail: a model can be trained without. What goes wrong is printed.

    Args:
        folder: Folder for the files. None is made where there is nothing to keep.
        factory_model: Result of the model factory; None without one.
        initial: File of the initial weights; None without one.
    """
    import torch

    try:
        if factory_model is not None:
            model, *others = factory_model.parts
            _keep_configuration(folder, model, factory_model.state.keys())
            for part in others:  # a tokenizer, or what prepares images; not a second model
                if hasattr(part, "save_pretrained") and not isinstance(part, torch.nn.Module):
                    folder.mkdir(exist_ok=True)
                    part.save_pretrained(folder)
        if initial is not None:
            for name in BESIDE:
                path = initial.parent / name
                if path.is_file() and not (folder / name).exists():
                    folder.mkdir(exist_ok=True)
                    shutil.copyfile(path, folder / name)
    except Exception:
        traceback.print_exc()


def _keep_configuration(folder: Path, module: Any, names: Collection[str]) -> None:
    """Keep the configuration of the pretrained model in a module.

    Files for a model whose tensors have other names than those that are exchanged, but for a
    prefix, would not fit the weights: none are kept then.
    """
    for prefix, model in _candidates(module):
        own = exchanged_state(model)
        for shown in (prefix, ""):
            if {f"{shown}{name}" for name in own} == set(names):
                folder.mkdir(exist_ok=True)
                (folder / PREFIX).write_text(shown)
                _save_configuration(folder, model)
                return


def _candidates(module: Any) -> Iterator[tuple[str, Any]]:
    import torch

    if not isinstance(module, torch.nn.Module):
        return
    if _is_pretrained(module):
        yield "", module
    yield from (
        (f"{name}.", child) for name, child in module.named_children() if _is_pretrained(child)
    )


def _save_configuration(folder: Path, model: Any) -> None:
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


def _is_pretrained(module: Any) -> bool:
    return is_adapted(module) or (
        hasattr(module, "save_pretrained") and hasattr(getattr(module, "config", None), "to_dict")
    )
