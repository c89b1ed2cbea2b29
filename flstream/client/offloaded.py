"""Optimizers whose state lies in a mapped file, and that step parameter by parameter."""

from __future__ import annotations

import copy
import ctypes
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flstream.errors import ClientError
from flstream.model.descriptors import WRITEBACK_BYTES, begin_writeback
from flstream.telemetry import MEMORY_GROUP

if TYPE_CHECKING:
    import torch

    OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)

# Tensors up to this size, such as counts of steps, stay in memory.
_SMALL_BYTES = 4096


class _MappedStates:
    """State tensors of parameters in a file without a name, which ends with this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with tempfile.TemporaryFile(dir=folder) as file:
            self._fd, self._end = os.dup(file.fileno()), 0
        weakref.finalize(self, os.close, self._fd)
        self._mapped: dict[tuple[int, str], torch.Tensor] = {}
        self._zeros: list[torch.Tensor] = []
        self._writes_back, self._unsynced = MEMORY_GROUP in os.environ, 0

    def take(self, parameter: torch.Tensor, state: dict[str, Any]) -> None:
        """Move the state of a parameter into the file, where it does not lie there yet."""
        import torch

        is_new = bool(self._zeros)
        for key, value in state.items():
            if not torch.is_tensor(value) or value.nbytes <= _SMALL_BYTES:
                continue
            if value.device.type != "cpu":
                raise ClientError(
                    f"the state {key!r} of the optimizer is on {value.device}, and offloaded() "
                    "keeps that of parameters on the CPU; leave it out"
                )
            own = self._mapped.get((id(parameter), key))
            if own is None and any(value is zeros for zeros in self._zeros):
                own = self._mapped[id(parameter), key] = value
            if own is value:
                continue
            if own is None or (own.shape, own.dtype) != (value.shape, value.dtype):
                own = self._mapped[id(parameter), key] = self._map(value)
            state[key] = own.copy_(value)
            is_new = True
            del value  # the block, which could not be given back otherwise
        self._zeros.clear()
        if is_new:
            # Blocks of a step's own lie where others could not use them, and glibc would keep them.
            ctypes.CDLL(None).malloc_trim(0)

    def zeros_in_file(self) -> AbstractContextManager[Any]:
        """Lay tensors of zeros, a parameter's moments before its first step, over the file.

        In memory they would be there beside what the step itself makes.
        """
        import torch
        from torch.overrides import TorchFunctionMode

        def zeros_like(tensor: torch.Tensor, **how: Any) -> torch.Tensor:
            zeros = torch.zeros_like(tensor, **how, device="meta")
            if tensor.device.type != "cpu" or zeros.nbytes <= _SMALL_BYTES:
                return torch.zeros_like(tensor, **how)
            self._zeros.append(self._map(zeros))  # new bytes of a file are zeros
            return self._zeros[-1]

        class ZerosInFile(TorchFunctionMode):
            def __torch_function__(
                self, function: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                called = zeros_like if function is torch.zeros_like else function
                return called(*args, **(kwargs or {}))

        return ZerosInFile()

    def wrote(self, state: dict[str, Any]) -> None:
        """Note that a step has written the state of a parameter."""
        if self._writes_back:
            self._unsynced += sum(
                value.nbytes for value in state.values() if hasattr(value, "nbytes")
            )
            if self._unsynced >= WRITEBACK_BYTES:
                begin_writeback(self._fd)
                self._unsynced = 0

    def _map(self, like: torch.Tensor) -> torch.Tensor:
        """Return a tensor in the file, with the dtype, shape and strides of another."""
        import torch

        try:
            os.posix_fallocate(self._fd, self._end, like.nbytes)
            content = _mapping(self._fd, self._end, like.nbytes)
        except OSError as error:
            raise ClientError(
                f"{self._folder} has no room for {like.nbytes} bytes of an optimizer's state: "
                f"{error.strerror}; name a folder on another disk"
            ) from error
        self._end += like.nbytes + -like.nbytes % mmap.PAGESIZE
        return torch.frombuffer(content, dtype=like.dtype).as_strided(like.shape, like.stride())


def _mapping(fd: int, offset: int, count: int) -> ctypes.Array[ctypes.c_char]:
    """Map bytes of a file; Python's own mapping would keep a descriptor open for each."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    words = ctypes.c_size_t(count), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd
    address = libc.mmap(None, *words, ctypes.c_long(offset))
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    content = (ctypes.c_char * count).from_address(address)
    end = weakref.finalize(content, libc.munmap, ctypes.c_void_p(address), words[0])
    end.atexit = False  # tensors outlive it then
    return content


def offloaded(optimizer: OptimizerT, folder: str | os.PathLike[str]) -> OptimizerT:
    """Keep an optimizer's state in a mapped file, so that training takes no memory for it.

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
            AdamW. The file has no name, and is gone when the process ends.

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
        states = _MappedStates(path)
    except OSError as error:
        raise ClientError(f"{path} cannot be used for an optimizer's state: {error}") from error
    stepping = copy.copy(optimizer)

    def step(self: torch.optim.Optimizer, closure: Callable[[], float] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        stepping.state = self.state
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    is_first = not self.state.get(parameter)
                    states.take(parameter, self.state.get(parameter, {}))
                    alone = {"params": [parameter], "foreach": False, "fused": False}
                    stepping.param_groups = [{**group, **alone}]
                    with states.zeros_in_file() if is_first else nullcontext():
                        stepping.step()
                    state = self.state.get(parameter, {})
                    states.take(parameter, state)
                    states.wrote(state)
        return loss

    # A class of its own, so that hooks and schedulers find a method as torch has it.
    optimizer.__class__ = type(kind.__name__, (kind,), {"step": step})
    optimizer.__setstate__({})
    return optimizer
