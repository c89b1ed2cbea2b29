"""Tensors that are made views of other memory, where nobody but their owner can tell.

To receive a model without a copy, the tensors of a module are given other memory. Whatever else
shows their old memory, such as a state dict that was taken before, would keep the old values. So a
tensor is given other memory only where all that shows its old one is known; else it is copied into.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class ModuleState(dict[str, Any]):
    """Tensors of a module by the names under which they are exchanged, over its own memory.

    Attributes:
        module: The module.

    Args:
        module: The module.
        state: The tensors.
    """

    def __init__(self, module: torch.nn.Module, state: Mapping[str, Any]) -> None:
        super().__init__(state)
        self.module = module


def owners_of(into: torch.nn.Module | Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the parameters and buffers of what is received into; none of a plain mapping."""
    module = getattr(into, "module", None) if isinstance(into, ModuleState) else into
    if module is None or isinstance(module, Mapping):
        return []
    return [*module.parameters(), *module.buffers()]


def rebind(
    state: Mapping[str, Any], owners: Iterable[torch.Tensor], views: Mapping[str, torch.Tensor]
) -> set[str]:
    """Make tensors views of other memory, as far as nobody else can tell.

    An optimizer's references to a module's parameters stay good: these get other ``data``. Tied
    tensors stay tied.

    Args:
        state: The tensors by name, which may be detached from the parameters that they show.
        owners: Parameters and buffers that they may be.
        views: The other memory by name, as tensors of the same shape and dtype; those without one
            are left alone.

    Returns:
        The names of the tensors that have other memory now.
    """
    users: dict[int, dict[int, torch.Tensor]] = {}
    for tensor in (*state.values(), *owners):
        if _may_move(tensor):
            users.setdefault(_storage_of(tensor), {})[id(tensor)] = tensor
    done: set[str] = set()
    moves: list[tuple[list[torch.Tensor], torch.Tensor]] = []
    for name, view in views.items():
        tensor = state[name]
        if not _may_move(tensor) or (tensor.dtype, tensor.shape) != (view.dtype, view.shape):
            continue
        known = list(users[_storage_of(tensor)].values())
        if all(_shows_same(tensor, each) for each in known) and _are_all(tensor, len(known)):
            moves.append((known, view))
            done.add(name)
    for known, view in moves:
        for each in known:
            each.data = view
    return done


def _may_move(tensor: Any) -> bool:
    import torch

    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and tensor.grad_fn is None
        and tensor.numel() > 0
        and tensor.is_contiguous()
        and not (tensor.is_inference() or tensor.is_shared() or tensor.is_conj() or tensor.is_neg())
    )


def _storage_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _shows_same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors of one storage show the same elements of it."""
    return (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype) == (
        other.storage_offset(),
        other.shape,
        other.stride(),
        other.dtype,
    )


def _are_all(tensor: torch.Tensor, known: int) -> bool:
    """Return whether no other tensor shows the storage of one; False where torch cannot tell."""
    import torch

    count = getattr(torch._C, "_storage_Use_Count", None)
    if count is None:
        return False
    storage = tensor.untyped_storage()  # which counts itself
    return bool(count(storage._cdata) == known + 1)
