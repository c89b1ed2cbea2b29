"""Optimizers whose state lies in mapped files, and that step parameter by parameter."""

from __future__ import annotations

import copy
import ctypes
import os
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flstream.errors import ClientError

if TYPE_CHECKING:
    import torch

    OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)


def offloaded(optimizer: OptimizerT, folder: str | os.PathLike[str]) -> OptimizerT:
    """Keep an optimizer's state in mapped files, so that training takes no memory for it.

    The optimizer then steps parameter by parameter, with torch's single-tensor implementation
    (``foreach=False``), to the same bits. The kernel writes the pages to the disk when memory is
    scarce. Memory of the process is that of the model, the gradients, and the state of the largest
    parameter::

        optimizer = flare.offloaded(torch.optim.AdamW(net.parameters()), "moments")

    Call it before the first step. Learning rate schedulers, hooks and
    :func:`restore_optimizer` work as before.

    Args:
        optimizer: AdamW, Adam or SGD of torch, of parameters on the CPU.
        folder: Folder on the disk that takes the state: 8 bytes for each float32 parameter with
            AdamW. The files have no names, and are gone when the process ends.

    Returns:
        The same optimizer.

    Raises:
        ClientError: It is another optimizer, or the folder cannot be used.
    """
    import torch

    from flstream.model.file_memory import FileMemory

    kind = type(optimizer)
    if kind not in (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD):
        raise ClientError(
            f"offloaded() was given a {kind.__name__}; it takes AdamW, Adam and SGD of torch.optim"
        )
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise ClientError(f"{path} cannot be used for an optimizer's state: {error}") from error
    in_files = FileMemory(path, "name a folder on another disk")
    stepping, stepped = copy.copy(optimizer), set[int]()  # by identity of the parameters

    def step(self: torch.optim.Optimizer, closure: Callable[[], float] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        stepping.state = self.state
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    alone = {"params": [parameter], "foreach": False, "fused": False}
                    stepping.param_groups = [{**group, **alone}]
                    is_first = id(parameter) not in stepped
                    stepped.add(id(parameter))
                    if is_first and not parameter.is_cpu:
                        raise ClientError(
                            f"a parameter is on {parameter.device}, and offloaded() keeps the "
                            "state of parameters on the CPU; leave it out"
                        )
                    with in_files if is_first else nullcontext():
                        stepping.step()
                    if is_first:
                        _trim()
        return loss

    def move_loaded(self: torch.optim.Optimizer) -> None:
        for state in self.state.values():
            with in_files:
                for key in [key for key, value in state.items() if torch.is_tensor(value)]:
                    state[key] = state[key].clone()
        _trim()

    optimizer.register_load_state_dict_post_hook(move_loaded)
    # A class of its own, so that hooks and schedulers find a method as torch has it.
    optimizer.__class__ = type(kind.__name__, (kind,), {"step": step})
    optimizer.__setstate__({})
    return optimizer


def _trim() -> None:
    """Give back blocks of a step's own to the system, which glibc would keep between others."""
    ctypes.CDLL(None).malloc_trim(0)
