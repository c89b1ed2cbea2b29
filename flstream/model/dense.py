"""Dense tensors and arrays in memory, seen as bytes, and refusals for all other values.

One that is transposed, strided, expanded or reversed lies in memory in another order than in the
body. Ranges of it are gathered, which takes memory for the range and not for the tensor.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from flstream.errors import LayoutError
from flstream.model.dtypes import BY_CODE, bits_dtype, code_of

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, np.dtype[Any]]

# Where neighbours in memory are far apart in the body, a plain copy uses one element of every
# cache line that it loads. Narrow tiles use the whole line before it is evicted: on a transposed
# matrix of 4096 x 4096 floats that is eight times as fast, and 64 was the best of 16 to 256.
_TILE = 64
# With fewer rows, starting the copy of a tile costs more than the tile saves.
_TILED_ROWS = 16


class HostTensor:
    """A tensor or an array in this process's memory, seen as bytes.

    Attributes:
        code: Element type, as a safetensors header names it.
        shape: Its dimensions.
        nbytes: Number of its bytes.
        address: Device, empty for the CPU, and address of its first byte.
        place: Key that is equal for tensors that show the same elements of the same memory.
        array: Its elements; integers of the same size where NumPy lacks the type.
        tensor: The torch tensor; None for an array.

    Args:
        code: As above.
        array: As above.
        tensor: As above.
    """

    def __init__(self, code: str, array: Array, tensor: torch.Tensor | None = None) -> None:
        self.code, self.array, self.tensor = code, array, tensor
        self.shape = tuple(array.shape)
        self.nbytes = int(array.nbytes)
        self.address = "", array.__array_interface__["data"][0]
        self.place = (self.address, self.shape, array.strides, code)
        is_flat = array.flags.c_contiguous
        self._bytes = array.reshape(-1).view(np.uint8).data if is_flat else None

    def in_place(self, start: int, stop: int) -> memoryview | None:
        """Return the bytes ``[start, stop)`` where they lie; None if they do so in other order."""
        return None if self._bytes is None else self._bytes[start:stop]

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Copy the bytes ``[start, stop)``, at least one."""
        if self._bytes is not None:
            into[:] = self._bytes[start:stop]
            return
        array = self.array.view(bits_dtype(self.array.itemsize))
        size = array.itemsize
        first, last = start // size, -(-stop // size)
        is_whole = (last - first) * size == len(into)
        room = into if is_whole else memoryview(bytearray((last - first) * size))
        _gather(array, first, last, np.frombuffer(room, array.dtype))
        if not is_whole:  # the range cuts elements
            into[:] = room[start - first * size : stop - first * size]

    def tobytes(self) -> bytes:
        """Return a copy of all bytes."""
        return self.array.tobytes()


def dense(name: str, value: object, *, writable: bool = False) -> HostTensor:
    """View a tensor or an array over its own memory.

    A lazily conjugated or negated tensor is copied instead, since it shows other bits than it
    stores.

    Args:
        name: Name of the tensor, for messages.
        value: Torch tensor, or NumPy array or scalar.
        writable: Whether it is to be written to, which requires it to be contiguous.

    Raises:
        LayoutError: The value cannot be streamed; the message names it and says what to do.
    """
    tensor = None
    if isinstance(value, np.ndarray) or (isinstance(value, np.generic) and not writable):
        # NumPy turns a result without dimensions into a scalar where an array is meant, and a
        # subclass such as np.matrix may override reshaping.
        array = np.asarray(value)
        if isinstance(value, np.ma.MaskedArray):
            raise LayoutError(
                f"array {name!r} is masked, and a mask cannot be streamed; "
                "send the values with .filled(...)"
            )
        code = streamed_code(name, array)
    else:
        tensor = expect_plain(name, value)
        code, array = _array_of(name, tensor, writable=writable)
    if writable and not array.flags.writeable:
        raise LayoutError(
            f"array {name!r} is read-only, so it cannot be received into; copy it first: .copy()"
        )
    if writable:
        expect_contiguous(name, is_contiguous=array.flags.c_contiguous)
    return HostTensor(code, array, tensor)


def _array_of(name: str, value: torch.Tensor, *, writable: bool) -> tuple[str, Array]:
    import torch

    if value.layout is not torch.strided or not value.is_cpu:
        remedy = "send it as a dense tensor: .to_dense()"
        if value.is_meta:
            remedy = "it has no values; load or initialise them first"
        raise LayoutError(f"tensor {name!r} is {value.layout} on {value.device}; {remedy}")
    code = streamed_code(name, value)
    if writable:
        expect_stored(name, value)
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
    return code, array


def streamed_code(name: str, value: torch.Tensor | Array) -> str:
    """Return the code of a value's element type in a header.

    Raises:
        LayoutError: A body cannot hold the type; the message names the tensor.
    """
    if str(value.dtype).endswith("complex128"):
        is_array = isinstance(value, np.ndarray)
        remedy = ".astype('complex64')" if is_array else ".to(torch.complex64)"
        raise LayoutError(
            f"tensor {name!r} is complex128, which no .safetensors file has; send it as {remedy}"
        )
    return code_of(value, name)


def expect_contiguous(name: str, *, is_contiguous: bool) -> None:
    """Refuse a tensor that cannot be written to as a row of bytes.

    Raises:
        LayoutError: It is not contiguous; the message names it.
    """
    if not is_contiguous:
        raise LayoutError(
            f"tensor {name!r} is not contiguous, so it cannot be received into; "
            "make it so first: .contiguous()"
        )


def expect_stored(name: str, value: torch.Tensor) -> None:
    """Refuse a tensor that shows other values than it stores, as it cannot be written to.

    Raises:
        LayoutError: It is lazily conjugated or negated; the message names it.
    """
    if value.is_conj() or value.is_neg():
        raise LayoutError(
            f"tensor {name!r} is lazily conjugated or negated, so it cannot be received into; "
            "make it plain first: .resolve_conj().resolve_neg()"
        )


def expect_plain(name: str, value: object) -> torch.Tensor:
    """Return a tensor as a plain one, over the same storage, whose operators are torch's own.

    Raises:
        LayoutError: It is none, or of a subclass that adds more than methods; the message names it.
    """
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


def _gather(array: Array, start: int, stop: int, out: Array) -> None:
    """Copy the elements ``[start, stop)``, counted in the order of the indices, into a flat array.

    Whole rows of the first dimension are copied at once. The rest of the row before them and of the
    row after them is a range of a smaller array.
    """
    if array.ndim == 1:
        out[:] = array[start:stop]
        return
    row = math.prod(array.shape[1:])
    first, skipped = divmod(start, row)
    last, rest = divmod(stop, row)
    if first == last:
        _gather(array[first], skipped, rest, out)
        return
    if skipped:
        _gather(array[first], skipped, row, out[: row - skipped])
        out = out[row - skipped :]
        first += 1
    whole = (last - first) * row
    if whole:
        _copy_rows(array[first:last], out[:whole].reshape(last - first, *array.shape[1:]))
    if rest:
        _gather(array[last], 0, rest, out[whole:])


def _copy_rows(array: Array, out: Array) -> None:
    if len(array) < _TILED_ROWS or abs(array.strides[0]) >= abs(array.strides[-1]):
        out[...] = array
        return
    # Tiles are cut along the last axis, or along one before it if those after it are short.
    axis, width = array.ndim - 1, 1
    while axis > 1 and width * array.shape[axis] <= _TILE:
        width *= array.shape[axis]
        axis -= 1
    step = _TILE // width
    for start in range(0, array.shape[axis], step):
        tile = (*[slice(None)] * axis, slice(start, start + step))
        out[tile] = array[tile]
