"""Element types that a body can hold, under their names in the safetensors format.

Of these, the format lacks ``C128``: it is streamed, and has no place in a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flstream.errors import LayoutError

if TYPE_CHECKING:
    import torch


class DType(NamedTuple):
    """An element type.

    Attributes:
        code: Name in a safetensors header, such as ``F32``.
        itemsize: Bytes of an element.
        torch_name: Name of the dtype's attribute of ``torch``.
        numpy_name: Name of the dtype in NumPy, or None where NumPy has no such type.
    """

    code: str
    itemsize: int
    torch_name: str
    numpy_name: str | None


_ALL = (
    DType("F64", 8, "float64", "float64"),
    DType("F32", 4, "float32", "float32"),
    DType("F16", 2, "float16", "float16"),
    DType("BF16", 2, "bfloat16", None),
    DType("F8_E4M3", 1, "float8_e4m3fn", None),
    DType("F8_E5M2", 1, "float8_e5m2", None),
    DType("F8_E4M3FNUZ", 1, "float8_e4m3fnuz", None),
    DType("F8_E5M2FNUZ", 1, "float8_e5m2fnuz", None),
    DType("F8_E8M0", 1, "float8_e8m0fnu", None),
    DType("C128", 16, "complex128", "complex128"),
    DType("C64", 8, "complex64", "complex64"),
    DType("I64", 8, "int64", "int64"),
    DType("I32", 4, "int32", "int32"),
    DType("I16", 2, "int16", "int16"),
    DType("I8", 1, "int8", "int8"),
    DType("U64", 8, "uint64", "uint64"),
    DType("U32", 4, "uint32", "uint32"),
    DType("U16", 2, "uint16", "uint16"),
    DType("U8", 1, "uint8", "uint8"),
    DType("BOOL", 1, "bool", "bool"),
)
BY_CODE = {dtype.code: dtype for dtype in _ALL}
_BY_TORCH = {f"torch.{dtype.torch_name}": dtype.code for dtype in _ALL}
_BY_NUMPY = {np.dtype(dtype.numpy_name): dtype.code for dtype in _ALL if dtype.numpy_name}


def code_of(value: torch.Tensor | np.ndarray[Any, Any], name: str) -> str:
    """Return the header code of a tensor's or an array's element type.

    Raises:
        LayoutError: A body cannot hold the type; the message names the tensor ``name``.
    """
    if isinstance(value, np.ndarray):
        code = _BY_NUMPY.get(value.dtype)
    else:
        code = _BY_TORCH.get(str(value.dtype))
    if code is None:
        raise LayoutError(
            f"tensor {name!r} has dtype {value.dtype}, which cannot be streamed; {_remedy(value)}"
        )
    return code


def _remedy(value: torch.Tensor | np.ndarray[Any, Any]) -> str:
    if isinstance(value, np.ndarray):
        native = value.dtype.newbyteorder("=")
        if native in _BY_NUMPY:
            return f"put its bytes into this machine's order: .astype({native.name!r})"
        if value.dtype.fields:
            return "send each of its fields as an array of its own"
        if value.dtype.kind in "OSU":
            return "send only numbers in params, and put other values in meta"
    elif value.is_quantized:
        return "send its values: .dequantize()"
    return f"convert it to one of {', '.join(dtype.torch_name for dtype in _ALL)}"


def bits_dtype(itemsize: int) -> np.dtype[Any]:
    """Return a NumPy dtype of that many bytes, whose elements are copied bit by bit.

    Floats may lose the bits of a signalling NaN on their way.
    """
    return np.dtype(f"u{itemsize}" if itemsize <= 8 else f"V{itemsize}")


def torch_dtype(code: str) -> torch.dtype:
    """Return the torch dtype of a header code."""
    import torch

    dtype: torch.dtype = getattr(torch, BY_CODE[code].torch_name)
    return dtype


def numpy_dtype(code: str, name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a header code.

    Raises:
        LayoutError: NumPy has no such type; the message names the tensor ``name``.
    """
    numpy_name = BY_CODE[code].numpy_name
    if numpy_name is None:
        raise LayoutError(
            f"tensor {name!r} has dtype {BY_CODE[code].torch_name}, which NumPy does not have; "
            "receive the model as torch tensors (train.exchange_format = pytorch)"
        )
    return np.dtype(numpy_name)
