"""Elements of a tensor, read block by block, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flstream.model.body import Scratch, Source
from flstream.model.dtypes import BY_CODE
from flstream.model.layout import TensorInfo

Array = np.ndarray[Any, Any]

READ_BYTES = 1 << 19
"""Bytes of a tensor read at a time."""

BLOCK = 32_768
"""Elements processed at a time: their float64 copy (256 KiB) stays in the L2 cache. Of 16 Ki,
32 Ki and 128 Ki, measured on 256 MiB of float32, this was the fastest."""

LARGEST, SMALLEST = 1e140, 1e-140
"""Numbers outside this interval have squares, or sums of squares, outside the range of float64."""


def read_blocks(source: Source, spec: TensorInfo, scratch: Scratch) -> Iterator[memoryview]:
    """Yield the bytes of a tensor in order, in blocks of whole elements.

    Args:
        source: checkpoint with the tensor.
        spec: the tensor.
        scratch: memory for the source's reads. A block is valid until the next one is yielded.
    """
    size = BLOCK * BY_CODE[spec.dtype].itemsize
    for start in range(spec.start, spec.stop, READ_BYTES):
        views = source.views(start, min(start + READ_BYTES, spec.stop), scratch)
        # Every source that reads a file returns a range of one tensor as one view.
        whole = views[0] if len(views) == 1 else memoryview(b"".join(views))
        for first in range(0, len(whole), size):
            yield whole[first : first + size]


def as_array(code: str, data: memoryview) -> Array:
    """Convert the bytes of a block to an array, without torch, whose import takes too long.

    Args:
        code: safetensors code of the tensor's type.
        data: bytes of whole elements.

    Returns:
        A one-dimensional array. Elements of bfloat16 and of the 8-bit floats are converted to
        float32, which is exact.
    """
    name = BY_CODE[code].numpy_name
    if code == "BOOL":
        # A file may have any byte here; all but 0 are true.
        truth: Array = np.frombuffer(data, np.uint8) != 0
        return truth
    if name is not None:
        return np.frombuffer(data, name)
    if code == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    table: Array = _EIGHT_BITS[code]
    return table[np.frombuffer(data, np.uint8)]


def _eight_bits(digits: int, bias: int) -> Array:
    """Return what all 256 bytes are with so many digits behind the point, but for NaNs."""
    bits = np.arange(256)
    exponent, fraction = (bits & 127) >> digits, (bits & (1 << digits) - 1) / 2**digits
    normal = np.ldexp(1 + fraction, exponent - bias)
    values = np.where(exponent == 0, np.ldexp(fraction, 1 - bias), normal)
    signed: Array = np.where(bits & 128, -values, values).astype(np.float32)
    return signed


def _e4m3() -> Array:
    """Return all values of ``float8_e4m3fn`` (Micikevicius et al. 2022, arXiv:2209.05433)."""
    values = _eight_bits(3, 7)
    values[[0x7F, 0xFF]] = np.nan  # there is no infinity
    return values


def _fnuz(digits: int, bias: int) -> Array:
    """Return all values of a type without infinities (Noune et al. 2022, arXiv:2206.02915)."""
    values = _eight_bits(digits, bias)
    values[0x80] = np.nan  # nor is there a negative zero
    return values


def _e8m0() -> Array:
    """Return all values of ``float8_e8m0fnu``, the scales of OCP's microscaling formats."""
    values = np.ldexp(np.ones(256), np.arange(256) - 127)
    values[0xFF] = np.nan
    return values.astype(np.float32)


def _e5m2() -> Array:
    """Return all 256 values of ``float8_e5m2``, the upper halves of float16."""
    bits = (np.arange(256) << 8).astype(np.uint16)
    return bits.view(np.float16).astype(np.float32)


_EIGHT_BITS = {
    "F8_E4M3": _e4m3(),
    "F8_E5M2": _e5m2(),
    "F8_E4M3FNUZ": _fnuz(3, 8),
    "F8_E5M2FNUZ": _fnuz(2, 16),
    "F8_E8M0": _e8m0(),
}
