"""The numbers of floating point tensors, as codecs take them: float32, and float64 where it is due.

NumPy alone reads and writes all types but those of eight bits, so that a process without torch
stays without it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flstream.model.dtypes import BY_CODE

Numbers = np.ndarray[Any, np.dtype[Any]]
"""Numbers in one dimension, float32 or float64."""

quietly = np.errstate(all="ignore")
"""Decorator for what computes with any numbers; those that are of no use are found in its result.
"""

LARGEST = {
    "F64": float(np.finfo(np.float64).max),
    "F32": float(np.finfo(np.float32).max),
    "F16": 65504.0,
    "BF16": float.fromhex("0x1.fep+127"),
    "F8_E4M3": 448.0,
    "F8_E5M2": 57344.0,
    "F8_E4M3FNUZ": 240.0,
    "F8_E5M2FNUZ": 57344.0,
}
"""Largest finite number of each type of floats, by its code in a header.

Complex numbers and powers of two that scale others (``F8_E8M0``) are no such types: they pass
codecs unchanged.
"""

MANTISSA_BITS = {
    "F64": 53,
    "F32": 24,
    "F16": 11,
    "BF16": 8,
    "F8_E4M3": 4,
    "F8_E5M2": 3,
    "F8_E4M3FNUZ": 4,
    "F8_E5M2FNUZ": 3,
}
"""Bits of the mantissa of each type of floats, the leading one included, by its code in a header.
"""

SMALLEST = {
    "F64": 2.0**-1074,
    "F32": 2.0**-149,
    "F16": 2.0**-24,
    "BF16": 2.0**-133,
    "F8_E4M3": 2.0**-9,
    "F8_E5M2": 2.0**-16,
    "F8_E4M3FNUZ": 2.0**-10,
    "F8_E5M2FNUZ": 2.0**-17,
}
"""Smallest number above zero of each type of floats, by its code in a header."""


def number_type(dtype: str) -> np.dtype[Any]:
    """Return the type in which the numbers of a tensor are taken; both hold them exactly."""
    return np.dtype(np.float64 if dtype == "F64" else np.float32)


def load(dtype: str, data: memoryview) -> Numbers:
    """Return the numbers of consecutive elements, read-only.

    Args:
        dtype: Type of the elements.
        data: Their bytes, which the numbers may share.
    """
    name = BY_CODE[dtype].numpy_name
    if name is not None:
        native = np.frombuffer(data, name)
        numbers = native.astype(number_type(dtype), copy=False)
    elif dtype == "BF16":
        wide = np.frombuffer(data, np.uint16).astype(np.uint32)
        numbers = np.left_shift(wide, 16, out=wide).view(np.float32)
    elif not len(data):
        numbers = np.empty(0, np.float32)
    else:
        import torch

        from flstream.model.dtypes import torch_dtype

        numbers = torch.frombuffer(bytearray(data), dtype=torch_dtype(dtype)).float().numpy()
    numbers = numbers.view()
    numbers.flags.writeable = False
    return numbers


@quietly
def store(dtype: str, numbers: Numbers, out: memoryview) -> None:
    """Round numbers once to a tensor's type, ties to even, and write them.

    Args:
        dtype: Type of the elements.
        numbers: The numbers.
        out: Writable bytes of as many elements.
    """
    name = BY_CODE[dtype].numpy_name
    if name is not None:
        np.copyto(np.frombuffer(out, name), numbers, casting="unsafe")
    elif dtype == "BF16":
        _store_bf16(numbers, np.frombuffer(out, np.uint16))
    elif len(numbers):
        import torch

        from flstream.model.dtypes import torch_dtype

        made = torch.from_numpy(np.array(numbers, np.float32)).to(torch_dtype(dtype))
        np.copyto(np.frombuffer(out, np.uint8), made.view(torch.uint8).numpy())


def stored(dtype: str, numbers: Numbers) -> bytes:
    """Return what :func:`store` writes."""
    out = bytearray(len(numbers) * BY_CODE[dtype].itemsize)
    store(dtype, numbers, memoryview(out))
    return bytes(out)


def _store_bf16(numbers: Numbers, out: Numbers) -> None:
    rounded = numbers.astype(np.float32, copy=False)  # float32 is only read
    bits = rounded.view(np.uint32)
    if numbers.dtype == np.float64:
        # What is not exact in float32 gets an odd last bit, so that it is no tie below: rounding
        # twice then gives what rounding once does. Boldo and Melquiond 2008, "Emulation of a FMA
        # and correctly rounded sums", doi:10.1109/TC.2007.70819.
        bits -= np.abs(rounded) > np.abs(numbers)  # towards zero
        bits |= (rounded != numbers) & np.isfinite(numbers)
    is_nan = np.isnan(rounded)
    # Half of the last bit that stays, and one less where that bit is even.
    odd = bits >> 16
    odd &= 1
    odd += 0x7FFF
    odd += bits
    odd >>= 16
    np.copyto(out, odd, casting="unsafe")
    if is_nan.any():  # a carry would make some of them infinities, or zeros
        out[is_nan] = (bits[is_nan] >> 16) | 0x40
