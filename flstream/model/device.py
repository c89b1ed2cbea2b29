"""Tensors on another device, such as a GPU: ranges of them are staged in host memory.

This is the only place where bytes cross between devices. Nothing is handed on before the device has
made its copies, as an event recorded behind them tells.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

from flstream.errors import LayoutError
from flstream.model.dense import (
    Dense,
    dense,
    expect_plain,
    expect_stored,
    plain_tensor,
    shows_its_storage,
)
from flstream.model.dtypes import code_of

if TYPE_CHECKING:
    import torch


class DeviceTensor:
    """A dense tensor on another device, seen as bytes.

    Attributes:
        code: Element type, as a safetensors header names it.
        shape: Dimensions of the tensor.
        place: Key that is equal for tensors that show the same elements of the same memory.

    Args:
        name: Name of the tensor, for messages.
        tensor: A plain tensor.
        writable: Whether it is to be written to, which requires it to be contiguous.

    Raises:
        LayoutError: It cannot be streamed; the message names it and says what to do.
    """

    def __init__(self, name: str, tensor: torch.Tensor, *, writable: bool) -> None:
        import torch

        self.code = code_of(tensor, name)
        self.shape = tuple(tensor.shape)
        self.place = (
            str(tensor.device), tensor.data_ptr(), self.shape, tensor.stride(), self.code
        )  # fmt: skip
        if writable and not tensor.is_contiguous():
            raise LayoutError(
                f"tensor {name!r} is not contiguous, so it cannot be received into; "
                "make it so first: .contiguous()"
            )
        if writable:
            expect_stored(name, tensor)
        # What this thread has asked of the device so far, such as a training, is done first.
        wait_for_copies(tensor.device)
        plain = tensor.detach().resolve_conj().resolve_neg()
        self._bytes = plain.contiguous().reshape(-1).view(torch.uint8)

    def __len__(self) -> int:
        return self.nbytes

    @property
    def nbytes(self) -> int:
        """Number of its bytes."""
        return self._bytes.numel()

    def room(self, start: int, stop: int) -> int:
        """Return the bytes that :meth:`gather` needs as room for ``[start, stop)``."""
        return stop - start

    def gather(self, start: int, stop: int, room: memoryview) -> memoryview:
        """Copy the bytes ``[start, stop)``, at least one, into ``room``; return a view of them."""
        view = room[: stop - start]
        _copy(self._bytes[start:stop], _tensor_over(view))
        return view

    def put(self, start: int, view: memoryview) -> None:
        """Copy bytes to the device, to the place that begins at ``start``."""
        _copy(_tensor_over(view), self._bytes[start : start + len(view)])

    def piece(self) -> DeviceTensor:
        """Return the bytes: this itself."""
        return self

    def tobytes(self) -> bytes:
        """Return a copy of all bytes."""
        return (
            bytes(self.gather(0, len(self), memoryview(bytearray(len(self))))) if len(self) else b""
        )


TensorView = Dense | DeviceTensor
"""A tensor or an array of whatever device, seen as bytes."""


def viewed(name: str, value: object, *, writable: bool = False) -> TensorView:
    """View a tensor or an array of whatever device; see :func:`flstream.model.dense.dense`.

    Raises:
        LayoutError: The value cannot be streamed; the message names it and says what to do.
    """
    if is_elsewhere(value):
        return DeviceTensor(name, expect_plain(name, value), writable=writable)
    return dense(name, value, writable=writable)


def is_elsewhere(value: object) -> TypeGuard[torch.Tensor]:
    """Return whether a value is a dense tensor on another device than the CPU."""
    torch = sys.modules.get("torch")  # without the import there is no tensor
    if torch is None or not isinstance(value, torch.Tensor) or not shows_its_storage(value):
        return False
    value = plain_tensor(value)
    return not (value.is_cpu or value.is_meta) and value.layout is torch.strided


def _tensor_over(view: memoryview) -> torch.Tensor:
    import torch

    return torch.frombuffer(view, dtype=torch.uint8)


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    begin_copy(source, target)
    wait_for_copies(source.device if source.device.type != "cpu" else target.device)


def begin_copy(source: torch.Tensor, target: torch.Tensor) -> None:
    """Ask for a copy between devices, which may be made later."""
    target.copy_(source, non_blocking=True)


def wait_for_copies(device: torch.device) -> None:
    """Wait until a device has done what this thread has asked of it, copies above all."""
    import torch

    if device.type != "cpu":
        event = torch.Event(device)
        event.record()
        event.synchronize()
