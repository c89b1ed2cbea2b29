"""Exchanged tensors of a module: its whole state, or its adapter's.

A PEFT model (``peft.PeftModel``) exchanges its adapter, under the names of adapter files. PEFT is
not imported here, unless a module is one of its models.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def is_adapted(module: object) -> bool:
    """Return whether a module is a model of PEFT, with an adapter."""
    # Without the import there is none.
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(module, peft.PeftModel)


def exchanged_state(module: torch.nn.Module) -> Mapping[str, Any]:
    """Return a module's exchanged tensors by name, over its own memory."""
    return adapter_of(module) if is_adapted(module) else module.state_dict()


def adapter_of(module: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a PEFT model's active adapter, by names of adapter files."""
    from peft import get_peft_model_state_dict

    name = module.active_adapter
    base = module.peft_config[name].base_model_name_or_path
    # For a base that is not on disk, PEFT would ask its hub about the vocabulary.
    embeddings = "auto" if not base or os.path.isdir(base) else False
    return dict(
        get_peft_model_state_dict(module, adapter_name=name, save_embedding_layers=embeddings)
    )


def load_adapter(module: Any, state: Mapping[str, torch.Tensor]) -> None:
    """Copy tensors into a PEFT model's active adapter, by names of adapter files."""
    from peft import set_peft_model_state_dict

    set_peft_model_state_dict(module, dict(state), adapter_name=module.active_adapter)


def is_own_memory(module: torch.nn.Module, state: Mapping[str, torch.Tensor]) -> bool:
    """Return whether tensors lie in a module's memory, so that writes change it.

    Those of some adapters are made anew whenever they are asked for.
    """
    own = (*module.parameters(), *module.buffers())
    places = {tensor.untyped_storage().data_ptr() for tensor in own}
    return all(tensor.untyped_storage().data_ptr() in places for tensor in state.values())
