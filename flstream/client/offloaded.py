"""Optimizers whose state lies in mapped files, and that step parameter by parameter."""

from __future__ import annotations

import copy
import ctypes
import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flstream.errors import ClientError

if TYPE_CHECKING:
    import torch

    OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)

# Tensors up to this size, such as counts of steps, stay in memory.
_SMALL_BYTES = 4096


class _MappedStates:
    """State tensors of parameters in files without names, which end with this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mapped: dict[tuple[int, str], torch.Tensor] = {}

    def take(self, parameter: torch.Tensor, state: dict[str, Any]) -> None:
        """Move the state of a parameter into its files, where it does not lie there yet."""
        import torch

        is_moved = False
        for key, value in state.items():
            if not torch.is_tensor(value) or value.nbytes <= _SMALL_BYTES:
                continue
            if value.device.type != "cpu":
                raise ClientError(
                    f"the state {key!r} of the optimizer is on {value.device}, and offloaded() "
                    "keeps that of parameters on the CPU; leave it out"
                )
            own = self._mapped.get((id(parameter), key))
            if own is value:
                continue
            if own is None or (own.shape, own.dtype) != (value.shape, value.dtype):
                own = self._mapped[id(parameter), key] = self._map(value)
            state[key] = own.copy_(value)
            is_moved = True
            del value  # the block, which could not be given back otherwise
        if is_moved:
            # Blocks of this size lie where others could not use them, and glibc would keep them.
            ctypes.CDLL(None).malloc_trim(0)

    def _map(self, like: torch.Tensor) -> torch.Tensor:
        """Return a tensor in a new file, with the dtype, shape and strides of another."""
        import torch

        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                os.posix_fallocate(file.fileno(), 0, like.nbytes)
                content = mmap.mmap(file.fileno(), like.nbytes)
        except OSError as error:
            raise ClientError(
                f"{self._folder} has no room for {like.nbytes} bytes of an optimizer's state: "
                f"{error.strerror}; name a folder on another disk"
            ) from error
        return torch.frombuffer(content, dtype=like.dtype).as_strided(like.shape, like.stride())


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
        ClientError: It is another optimizer, or has made a step, or the folder cannot be used.
    """
    import torch

    kind = type(optimizer)
    if kind not in (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD):
        raise ClientError(
            f"offloaded() was given a {kind.__name__}; it takes AdamW, Adam and SGD of torch.optim"
        )
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClientError(f"{path} cannot be used for an optimizer's state: {error}") from error
    states, stepping = _MappedStates(path), copy.copy(optimizer)

    def step(self: torch.optim.Optimizer, closure: Callable[[], float] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        stepping.state = self.state
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    states.take(parameter, self.state.get(parameter, {}))
                    alone = {"params": [parameter], "foreach": False, "fused": False}
                    stepping.param_groups = [{**group, **alone}]
                    stepping.step()
                    states.take(parameter, self.state.get(parameter, {}))
        return loss

    # A class of its own, so that hooks and schedulers find a method as torch has it.
    optimizer.__class__ = type(kind.__name__, (kind,), {"step": step})
    optimizer.__setstate__({})
    return optimizer
