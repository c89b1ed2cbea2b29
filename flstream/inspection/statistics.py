"""Statistics of tensors, computed block by block."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Self

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from flstream.model.dtypes import BY_CODE, loaded
from flstream.model.layout import TensorInfo
from flstream.model.source import Scratch, Source, views_of

_Array = np.ndarray[Any, Any]
READ_BYTES = 1 << 19
"""Bytes of a tensor read at a time."""

BLOCK = 32_768
"""Elements processed at a time: their float64 copy (256 KiB) stays in the L2 cache. Of 16 Ki,
32 Ki and 128 Ki, measured on 256 MiB of float32, this was the fastest."""


class Statistics(msgspec.Struct, frozen=True):
    """Statistics of a tensor's finite elements; None without any."""

    finite: int
    non_finite: int  # NaN or infinite
    nan: int
    zeros: int
    min: float | int | None = None  # of complex elements, of their absolute values
    max: float | int | None = None  # likewise
    mean: float | complex | None = None
    std: float | None = None  # of the population: divided by the count
    norm: float | None = None  # Euclidean


class TensorRow(msgspec.Struct, frozen=True):
    """A tensor: ``start`` and ``stop`` are its bytes in the body, through all shards."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    start: int
    stop: int
    stats: Statistics | UnsetType = UNSET

    @classmethod
    def of(cls, spec: TensorInfo, stats: Statistics | UnsetType = UNSET) -> Self:
        """Describe a tensor of a layout."""
        return cls(spec.name, spec.dtype, spec.shape, spec.nbytes, spec.start, spec.stop, stats)


def tensor_statistics(source: Source, spec: TensorInfo, scratch: Scratch) -> Statistics:
    """Compute the statistics of a tensor, in memory for a few blocks of it.

    Within a block deviations are from its own mean, and what rounding left of their sum is taken
    off (the corrected two-pass algorithm); blocks are merged as in Chan, Golub and LeVeque 1983,
    "Algorithms for computing the sample variance". So a large mean hides no small deviation.
    """
    finite = nan = zeros = 0
    low, high = np.inf, -np.inf
    mean, squares = np.clongdouble(0), np.longdouble(0)  # squares of deviations from the mean
    with np.errstate(all="ignore"):  # non-finite elements are counted
        for block in read_blocks(source, spec, scratch):
            values = as_array(spec.dtype, block)
            is_finite = np.isfinite(values)
            if not is_finite.all():
                nan += int(np.count_nonzero(np.isnan(values)))
                values = values[is_finite]
            if not (count := len(values)):
                continue
            zeros += int(np.count_nonzero(values == 0))
            wide = widened(values)
            sizes = np.abs(wide) if wide.dtype.kind == "c" else values
            low, high = min(low, sizes.min()), max(high, sizes.max())
            # From the first value on: numbers that are all alike have exactly that mean.
            first = wide[0]
            wide -= first
            center = wide.mean()
            wide -= center
            rest = wide.sum()
            parts = wide.view(wide.real.dtype)  # einsum has no threads, which BLAS's dot has
            own = max(np.einsum("i,i->", parts, parts) - abs(rest) ** 2 / count, 0)
            delta = np.clongdouble(first) + center + rest / count - mean
            squares += own + abs(delta) ** 2 * (np.longdouble(finite) * count / (finite + count))
            mean += delta * (np.longdouble(count) / (finite + count))
            finite += count
    counts = finite, spec.elements - finite, nan, zeros
    if not finite:
        return Statistics(*counts)
    number = int if sizes.dtype.kind in "iub" else float
    return Statistics(
        *counts,
        min=number(low),
        max=number(high),
        mean=complex(mean) if spec.dtype == "C64" else float(mean.real),
        std=in_float64(np.sqrt(squares / finite)),
        norm=in_float64(np.sqrt(squares + finite * abs(mean) ** 2)),
    )


def in_float64(value: np.longdouble) -> float:
    """Convert a number that is not negative, at most to the greatest finite float64."""
    return float(min(value, np.longdouble(sys.float_info.max)))


def read_blocks(source: Source, spec: TensorInfo, scratch: Scratch) -> Iterator[memoryview]:
    """Yield the bytes of a tensor in blocks of whole elements, each valid until the next."""
    size = BLOCK * BY_CODE[spec.dtype].itemsize
    for start in range(spec.start, spec.stop, READ_BYTES):
        views = views_of(source, start, min(start + READ_BYTES, spec.stop), scratch)
        # Every source that reads a file returns a range of one tensor as one view.
        whole = views[0] if len(views) == 1 else memoryview(b"".join(views))
        for first in range(0, len(whole), size):
            yield whole[first : first + size]


def as_array(code: str, data: memoryview) -> _Array:
    """Convert the bytes of whole elements to a one-dimensional array.

    Elements of bfloat16 and of the 8-bit floats become float32, which is exact. Torch is imported
    for 8-bit floats alone, since that takes longer than reading most checkpoints.
    """
    if code == "BOOL":  # a file may have any byte here; all but 0 are true
        return np.not_equal(np.frombuffer(data, np.uint8), 0)
    name = BY_CODE[code].numpy_name
    return np.frombuffer(data, name) if name is not None else loaded(code, data)


def widened(values: _Array) -> _Array:
    """Convert elements to a wider type, in which their squares and differences are finite.

    That is float64, or for types of 64 bits a long double, which has their integers exactly; and
    likewise for complex numbers.
    """
    part = values.dtype.itemsize // (2 if values.dtype.kind == "c" else 1)
    if values.dtype.kind == "c":
        return values.astype(np.complex128 if part < 8 else np.clongdouble)
    return values.astype(np.float64 if part < 8 else np.longdouble)
