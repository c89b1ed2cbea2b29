"""Elements of a tensor, read block by block, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from flstream.model.body import Scratch, Source
from flstream.model.dtypes import BY_CODE, torch_dtype
from flstream.model.layout import TensorInfo

Array = np.ndarray[Any, Any]

READ_BYTES = 1 << 19
"""Bytes of a tensor read at a time."""

BLOCK = 32_768
"""Elements processed at a time: their float64 copy (256 KiB) stays in the L2 cache. Of 16 Ki,
32 Ki and 128 Ki, measured on 256 MiB of float32, this was the fastest."""


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
    """Convert the bytes of whole elements to a one-dimensional array.

    Elements of bfloat16 and of the 8-bit floats become float32, which is exact. Torch is imported
    for 8-bit floats alone, since that takes longer than reading most checkpoints.

    Args:
        code: safetensors code of the tensor's type.
        data: bytes of the elements.
    """
    if code == "BOOL":  # a file may have any byte here; all but 0 are true
        return np.not_equal(np.frombuffer(data, np.uint8), 0)
    if code == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    name = BY_CODE[code].numpy_name
    if name is not None:
        return np.frombuffer(data, name)
    array: Array = _eight_bit_floats(code)[np.frombuffer(data, np.uint8)]
    return array


@cache
def _eight_bit_floats(code: str) -> Array:
    """Values of all 256 bytes."""
    import torch

    values: Array = torch.arange(256, dtype=torch.uint8).view(torch_dtype(code)).float().numpy()
    return values


def widened(values: Array) -> Array:
    """Convert elements to a wider type, in which their squares and differences are finite.

    That is float64, or for types of 64 bits a long double, which has their integers exactly; and
    likewise for complex numbers.
    """
    part = values.dtype.itemsize // (2 if values.dtype.kind == "c" else 1)
    if values.dtype.kind == "c":
        return values.astype(np.complex128 if part < 8 else np.clongdouble)
    return values.astype(np.float64 if part < 8 else np.longdouble)
