"""Dense tensors and arrays in memory, which can be streamed, and refusals for all other values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flstream.errors import LayoutError
from flstream.model.dtypes import BY_CODE, code_of
from flstream.model.staging import Piece, piece_of

if TYPE_CHECKING:
    import torch


class Dense(NamedTuple):
    """A tensor or an array, seen as a NumPy array over the same memory.

    Attributes:
        code: Element type, as a safetensors header names it.
        array: Elements; unsigned or signed integers of the same size where NumPy lacks the type.
    """

    code: str
    array: np.ndarray[Any, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions of the array."""
        return tuple(self.array.shape)

    @property
    def place(self) -> tuple[object, ...]:
        """Key that is equal for tensors that show the same elements of the same memory."""
        array = self.array
        return array.__array_interface__["data"][0], array.shape, array.strides, self.code

    @property
    def nbytes(self) -> int:
        """Number of its bytes."""
        return int(self.array.nbytes)

    def piece(self) -> Piece:
        """Return the bytes, over the array's own memory."""
        return piece_of(self.array)

    def tobytes(self) -> bytes:
        """Return a copy of all bytes."""
        return self.array.tobytes()


def dense(name: str, value: object, *, writable: bool = False) -> Dense:
    """View a tensor or an array as a NumPy array over its own memory.

    A lazily conjugated or negated tensor is copied instead, since it shows other bits than it
    stores.

    Args:
        name: Name of the tensor, for messages.
        value: Torch tensor, or NumPy array or scalar.
        writable: Whether the array is to be written to, which requires it to be contiguous.

    Raises:
        LayoutError: The value cannot be streamed; the message names it and says what to do.
    """
    if isinstance(value, np.ndarray):
        found = _of_array(name, value)
    elif isinstance(value, np.generic) and not writable:
        # NumPy turns a result without dimensions into a scalar where an array is meant.
        found = _of_array(name, np.asarray(value))
    else:
        found = _of_tensor(name, value, writable=writable)
    if writable:
        if not found.array.flags.writeable:
            raise LayoutError(
                f"array {name!r} is read-only, so it cannot be received into; "
                "copy it first: .copy()"
            )
        if not found.array.flags.c_contiguous:
            raise LayoutError(
                f"tensor {name!r} is not contiguous, so it cannot be received into; "
                "make it so first: .contiguous()"
            )
    return found


def _of_array(name: str, value: np.ndarray[Any, Any]) -> Dense:
    if isinstance(value, np.ma.MaskedArray):
        raise LayoutError(
            f"array {name!r} is masked, and a mask cannot be streamed; "
            "send the values with .filled(...)"
        )
    code = code_of(value, name)
    # A subclass such as np.matrix may override reshaping.
    return Dense(code, np.asarray(value))


def _of_tensor(name: str, value: object, *, writable: bool) -> Dense:
    import torch

    if not isinstance(value, torch.Tensor):
        raise LayoutError(
            f"{name!r} is a {type(value).__name__}, not a tensor or array; "
            "send only tensors in params, and put other values in meta"
        )
    value = expect_plain(name, value)
    if value.layout is not torch.strided or not value.is_cpu:
        raise LayoutError(f"tensor {name!r} is {value.layout} on {value.device}; " + _remedy(value))
    code = code_of(value, name)
    if writable:
        expect_stored(name, value)
    if value.is_conj() or value.is_neg():
        value = value.resolve_conj().resolve_neg()
    value = value.detach()
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
    return Dense(code, array)


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


def expect_plain(name: str, value: torch.Tensor) -> torch.Tensor:
    """Return a tensor as a plain one, over the same storage.

    Raises:
        LayoutError: It is of a subclass that adds more than methods; the message names it.
    """
    if _is_plain(value):
        return value
    _refuse_other_storage(name, value)
    return plain_tensor(value)


def plain_tensor(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor of a subclass as a plain one, whose operators are torch's own."""
    import torch

    return value if _is_plain(value) else value.as_subclass(torch.Tensor)


def _is_plain(value: torch.Tensor) -> bool:
    import torch

    return type(value) is torch.Tensor or type(value) is torch.nn.Parameter


def shows_its_storage(value: torch.Tensor) -> bool:
    """Return whether a tensor has its values in the storage that it shows."""
    import torch

    return _is_plain(value) or not (torch.nn.parameter.is_lazy(value) or _dispatches(value))


def _dispatches(value: torch.Tensor) -> bool:
    """Return whether a subclass has its own dispatch, as a DTensor, and its values elsewhere."""
    import torch

    dispatch = getattr(type(value), "__torch_dispatch__", None)
    return dispatch is not torch.Tensor.__torch_dispatch__


def _refuse_other_storage(name: str, value: torch.Tensor) -> None:
    """Refuse a tensor of a subclass that adds more than methods.

    Raises:
        LayoutError: It is one; the message names it.
    """
    import torch

    if torch.nn.parameter.is_lazy(value):
        raise LayoutError(
            f"tensor {name!r} has no shape yet; run a batch through its lazy module first"
        )
    if _dispatches(value):
        raise LayoutError(
            f"tensor {name!r} is a {type(value).__name__}, whose values do not lie in one dense "
            "storage; send a plain tensor made from it, such as .full_tensor() or .dequantize()"
        )


def _remedy(value: torch.Tensor) -> str:
    if value.is_meta:
        return "it has no values; load or initialise them first"
    return "send it as a dense tensor: .to_dense()"
