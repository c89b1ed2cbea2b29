"""Dense tensors and arrays as bytes, and refusals for all other values.

One that is transposed, strided, expanded or reversed lies in memory in another order than in the
body. Ranges of it are gathered, which takes memory for the range and not for the tensor.

Ranges of a tensor on another device, such as a GPU, are staged in host memory. This is the only
place where bytes cross between devices. Nothing is handed on before the device has made its copies.

Tied weights, names of one tensor, are one view: the tensor travels once and is tied on arrival.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from flstream.errors import LayoutError
from flstream.model.dtypes import BY_CODE, code_of
from flstream.model.layout import check_name

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, np.dtype[Any]]

# Bytes of two tensors that are compared at a time.
_COMPARED_BYTES = 1 << 20


class TensorView:
    """Tensor or array as bytes, over its own memory, on any device.

    A lazily conjugated or negated tensor is copied instead, since it shows other bits than it
    stores.

    Attributes:
        code: Element type, as a safetensors header names it.
        shape: Its dimensions.
        nbytes: Number of its bytes.
        address: Device, empty for the CPU, and address of its first byte.
        place: Key that is equal for tensors that show the same elements of the same memory.
        tensor: The torch tensor; None for an array.
        data: Its bytes in host memory, in the order of the body; None where they lie in another
            order, or on another device.
    """

    def __init__(self, name: str, value: object, *, writable: bool = False) -> None:
        self.tensor: torch.Tensor | None = None
        self._name = name
        # How often torch's operators have changed the tensor in place. What NumPy writes, or what
        # goes through .data, is not counted; nor are tensors made in inference mode.
        self._version: int | None = None
        self.data: memoryview | None = None
        self._on_device: torch.Tensor | None = None  # its bytes, if they are on another device
        if isinstance(value, np.ndarray) or (isinstance(value, np.generic) and not writable):
            if isinstance(value, np.ma.MaskedArray):
                raise LayoutError(
                    f"array {name!r} is masked, and a mask cannot be streamed; "
                    "send the values with .filled(...)"
                )
            # NumPy turns a result without dimensions into a scalar where an array is meant, and a
            # subclass such as np.matrix may override reshaping.
            array = np.asarray(value)
            self.code = code_of(array, name)
        else:
            self.tensor = _plain(name, value)
            self.code = code_of(self.tensor, name)
            if writable and (self.tensor.is_conj() or self.tensor.is_neg()):
                raise LayoutError(
                    f"tensor {name!r} is lazily conjugated or negated, so it cannot be received "
                    "into; make it plain first: .resolve_conj().resolve_neg()"
                )
            if not (writable or self.tensor.is_inference()):
                self._version = self.tensor._version
            if is_elsewhere(self.tensor):
                self._stage(name, self.tensor, writable=writable)
                return
            array = _array(name, self.tensor, self.code)
        if writable and not array.flags.writeable:
            raise LayoutError(
                f"array {name!r} is read-only, so it cannot be received into; copy it first: "
                ".copy()"
            )
        if writable:
            _expect_contiguous(name, is_contiguous=array.flags.c_contiguous)
        self._array = array
        self.shape = tuple(array.shape)
        self.nbytes = int(array.nbytes)
        self.address = "", array.__array_interface__["data"][0]
        self.place = (self.address, self.shape, array.strides, self.code)
        if array.flags.c_contiguous:
            self.data = array.reshape(-1).view(np.uint8).data

    def _stage(self, name: str, tensor: torch.Tensor, *, writable: bool) -> None:
        """View a tensor on another device."""
        import torch

        if writable:
            _expect_contiguous(name, is_contiguous=tensor.is_contiguous())
        self.shape = tuple(tensor.shape)
        self.address = str(tensor.device), tensor.data_ptr()
        self.place = (self.address, self.shape, tensor.stride(), self.code)
        plain = tensor.detach().resolve_conj().resolve_neg()
        self._on_device = plain.contiguous().reshape(-1).view(torch.uint8)
        self.nbytes = self._on_device.numel()
        wait_for_work(tensor.device)

    def changed(self) -> str | None:
        """Return a sentence if torch has changed the tensor; None for a writable view."""
        if self._version is None or self.tensor is None or self.tensor._version == self._version:
            return None
        return (
            f"tensor {self._name!r} was changed while it was on offer; send a copy of it, or "
            "change it once the offer has settled"
        )

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Copy the bytes ``[start, stop)``, at least one."""
        if self.data is not None:
            into[:] = self.data[start:stop]
            return
        if self._on_device is not None:
            host_tensor(into).copy_(self._on_device[start:stop])
            return
        # As integers: floats may lose the bits of a signalling NaN on their way.
        size = self._array.itemsize
        array = self._array.view(f"u{size}")
        first, last = start // size, -(-stop // size)
        is_whole = (last - first) * size == len(into)
        room = into if is_whole else memoryview(bytearray((last - first) * size))
        _gather(array, first, last, np.frombuffer(room, array.dtype))
        if not is_whole:  # the range cuts elements
            into[:] = room[start - first * size : stop - first * size]

    def write(self, start: int, view: memoryview) -> None:
        """Copy bytes to another device, into the tensor from ``start`` on."""
        assert self._on_device is not None  # others are written to in place
        self._on_device[start : start + len(view)].copy_(host_tensor(view))


def _plain(name: str, value: object) -> torch.Tensor:
    """Return a tensor as a plain torch tensor, over the same storage."""
    import torch

    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return value  # type: ignore[return-value]
    if not isinstance(value, torch.Tensor):
        raise LayoutError(
            f"{name!r} is a {type(value).__name__}, not a tensor or array; "
            "send only tensors in params, and put other values in meta"
        )
    if torch.nn.parameter.is_lazy(value):
        raise LayoutError(
            f"tensor {name!r} has no shape yet; run a batch through its lazy module first"
        )
    # One with a dispatch of its own, as a DTensor, has its values elsewhere.
    dispatch = getattr(type(value), "__torch_dispatch__", None)
    if dispatch is not torch.Tensor.__torch_dispatch__:
        raise LayoutError(
            f"tensor {name!r} is a {type(value).__name__}, whose values do not lie in one dense "
            "storage; send a plain tensor made from it, such as .full_tensor() or .dequantize()"
        )
    return value.as_subclass(torch.Tensor)


def _expect_contiguous(name: str, *, is_contiguous: bool) -> None:
    if not is_contiguous:
        raise LayoutError(
            f"tensor {name!r} is not contiguous, so it cannot be received into; "
            "make it so first: .contiguous()"
        )


def _array(name: str, value: torch.Tensor, code: str) -> Array:
    """Return a tensor as an array, of integers of its size where NumPy lacks its type."""
    import torch

    if value.layout is not torch.strided or not value.is_cpu:
        remedy = "send it as a dense tensor: .to_dense()"
        if value.is_meta:
            remedy = "it has no values; load or initialise them first"
        raise LayoutError(f"tensor {name!r} is {value.layout} on {value.device}; {remedy}")
    value = value.detach().resolve_conj().resolve_neg()
    try:
        if BY_CODE[code].numpy_name is None:
            value = value.view(torch.int16 if BY_CODE[code].itemsize == 2 else torch.int8)
        array = value.numpy()
    except (RuntimeError, TypeError, ValueError) as error:
        # Under vmap and similar transforms, a tensor has no storage of the kind that it shows.
        raise LayoutError(
            f"tensor {name!r} has no values in memory that can be streamed: {error}"
        ) from error
    if array.size and not value.untyped_storage().nbytes():
        raise LayoutError(
            f"the storage of tensor {name!r} was freed; gather its values before sending them"
        )
    return array


def is_elsewhere(value: torch.Tensor) -> bool:
    """Return whether a dense tensor is on another device than the CPU."""
    import torch

    return not (value.is_cpu or value.is_meta) and value.layout is torch.strided


def host_tensor(view: memoryview) -> torch.Tensor:
    """Return bytes in host memory as a tensor; copies to or from it are over once they return."""
    import torch

    return torch.frombuffer(view, dtype=torch.uint8)


def wait_for_work(device: torch.device) -> None:
    """Wait until a device has done this thread's work, such as a training."""
    import torch

    if device.type != "cpu":
        event = torch.Event(device)
        event.record()
        event.synchronize()


def _gather(array: Array, start: int, stop: int, out: Array) -> None:
    """Copy the elements ``[start, stop)``, in the indices' order, into a flat array."""
    # Measured: 0.4 GB/s of a transposed matrix, and 1.7 GB/s of images with their channels last.
    pieces = np.nditer(array, ["external_loop", "buffered", "ranged", "delay_bufalloc"], order="C")
    pieces.iterrange = start, stop  # type: ignore[misc]  # which can be set, by its documentation
    reached = 0
    for piece in pieces:
        out[reached : reached + len(piece)] = piece
        reached += len(piece)


def find_ties(places: Mapping[str, Hashable]) -> dict[str, str]:
    """Return the name that stands for a tensor, by each of its other names.

    It is the first in alphabetical order, so that it does not depend on that of the state dict.
    Tensors are given by a key of their elements in memory.
    """
    firsts: dict[Hashable, str] = {}
    ties = {}
    for name in sorted(places):
        first = firsts.setdefault(places[name], name)
        if first != name:
            ties[name] = first
    return ties


def distinct_views(
    tensors: Mapping[str, object], tied: Mapping[str, str] | None, *, writable: bool = False
) -> tuple[dict[str, TensorView], Mapping[str, str]]:
    """View tensors as bytes, tied ones once.

    Training often breaks a tie in its results, by cloning every value, or lists a tied parameter
    under one of its names only, as ``Module.named_parameters`` does. Neither loses anything.
    Returned are the tensors without the aliases, and the aliases, which are found if None are
    given.
    """
    for name in tensors:
        check_name(name)
    distinct = {name: TensorView(name, value, writable=writable) for name, value in tensors.items()}
    if tied is None:
        tied = find_ties({name: view.place for name, view in distinct.items() if view.nbytes})
    for alias, name in tied.items():
        if alias not in distinct:
            continue
        mine = distinct.pop(alias)
        if not _same_bytes(mine, distinct.setdefault(name, mine)):
            raise LayoutError(
                f"tensor {alias!r} is tied to {name!r} in the model, but the update holds "
                "different values; tie them again or untie them in the model"
            )
    return distinct, tied


def _same_bytes(one: TensorView, other: TensorView) -> bool:
    if one.place == other.place:
        return True
    if (one.code, one.shape) != (other.code, other.shape):
        return False
    for start in range(0, one.nbytes, _COMPARED_BYTES):
        stop = min(start + _COMPARED_BYTES, one.nbytes)
        mine, theirs = bytearray(stop - start), bytearray(stop - start)
        one.read(start, stop, memoryview(mine))
        other.read(start, stop, memoryview(theirs))
        if mine != theirs:
            return False
    return True
