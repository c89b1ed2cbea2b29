"""Tensors on another device, such as a GPU: ranges of them are staged in host memory.

This is the only place where bytes cross between devices. Nothing is handed on before the device has
made its copies, as an event recorded behind them tells.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from flstream.model.dense import (
    HostTensor,
    dense,
    expect_contiguous,
    expect_plain,
    expect_stored,
    streamed_code,
)

if TYPE_CHECKING:
    import torch


class DeviceTensor:
    """A dense tensor on another device, seen as bytes: see :class:`HostTensor`.

    Args:
        name: Name of the tensor, for messages.
        tensor: A plain tensor.
        writable: Whether it is to be written to, which requires it to be contiguous.

    Raises:
        LayoutError: It cannot be streamed; the message names it and says what to do.
    """

    def __init__(self, name: str, tensor: torch.Tensor, *, writable: bool) -> None:
        import torch

        self.code, self.tensor = streamed_code(name, tensor), tensor
        self.shape = tuple(tensor.shape)
        self.address = str(tensor.device), tensor.data_ptr()
        self.place = (self.address, self.shape, tensor.stride(), self.code)
        if writable:
            expect_contiguous(name, is_contiguous=tensor.is_contiguous())
            expect_stored(name, tensor)
        # What this thread has asked of the device so far, such as a training, is done first.
        wait_for_copies(tensor.device)
        plain = tensor.detach().resolve_conj().resolve_neg()
        self._bytes = plain.contiguous().reshape(-1).view(torch.uint8)
        self.nbytes = self._bytes.numel()

    def in_place(self, start: int, stop: int) -> None:
        """Return None: no byte lies in host memory."""

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Copy the bytes ``[start, stop)``, at least one, from the device."""
        _copy(self._bytes[start:stop], _tensor_over(into))

    def write(self, start: int, view: memoryview) -> None:
        """Copy bytes to the device, to the place that begins at ``start``."""
        _copy(_tensor_over(view), self._bytes[start : start + len(view)])

    def tobytes(self) -> bytes:
        """Return a copy of all bytes."""
        data = bytearray(self.nbytes)
        if data:
            self.read(0, self.nbytes, memoryview(data))
        return bytes(data)


TensorView = HostTensor | DeviceTensor
"""A tensor or an array of whatever device, seen as bytes."""


def viewed(name: str, value: object, *, writable: bool = False) -> TensorView:
    """View a tensor or an array of whatever device; see :func:`flstream.model.dense.dense`.

    Raises:
        LayoutError: The value cannot be streamed; the message names it and says what to do.
    """
    torch = sys.modules.get("torch")  # without the import there is no tensor
    if torch is not None and isinstance(value, torch.Tensor):
        value = expect_plain(name, value)
        if is_elsewhere(value):
            return DeviceTensor(name, value, writable=writable)
    return dense(name, value, writable=writable)


def is_elsewhere(value: torch.Tensor) -> bool:
    """Return whether a plain tensor is a dense one on another device than the CPU."""
    import torch

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
