"""Statistics of tensors, and differences of two checkpoints, block by block."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from flstream.model.dtypes import BY_CODE, loaded
from flstream.model.layout import Layout, TensorInfo
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


class Reshaped(msgspec.Struct, frozen=True):
    """Tensor whose dtype or shape differs in the other checkpoint."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    other_dtype: str
    other_shape: tuple[int, ...]


class Changed(msgspec.Struct, frozen=True):
    """Tensor that differs between two checkpoints in at least one byte."""

    name: str
    bytes: int
    equal_bytes: int  # bytes that are the same in both
    l2: float  # norm of the difference, over elements finite in both
    max_difference: float | int  # absolute, of elements finite in both; exact for integers
    non_finite: int  # elements that differ and are NaN or infinite in one of the two


class Difference(msgspec.Struct, frozen=True):
    """The difference between a checkpoint and another one."""

    other: str  # path of the other checkpoint
    added: Sequence[TensorRow]  # in the other checkpoint alone
    removed: Sequence[TensorRow]  # in the first checkpoint alone
    reshaped: Sequence[Reshaped]
    changed: Sequence[Changed]
    compared: int  # tensors that were compared byte by byte
    compared_bytes: int
    equal_bytes: int
    equal_share: float  # from 0 to 1; 1 without a byte to compare
    l2: float  # over all changed tensors


def tensor_statistics(source: Source, spec: TensorInfo, scratch: Scratch) -> Statistics:
    """Compute the statistics of a tensor, with memory for a few blocks of it.

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
    """Yield a tensor's bytes in blocks of whole elements, each valid until the next."""
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
    """Convert elements to a wider type, so that squares and differences stay finite.

    That is float64, or for types of 64 bits a long double, which has their integers exactly; and
    likewise for complex numbers.
    """
    part = values.dtype.itemsize // (2 if values.dtype.kind == "c" else 1)
    if values.dtype.kind == "c":
        return values.astype(np.complex128 if part < 8 else np.clongdouble)
    return values.astype(np.float64 if part < 8 else np.longdouble)


def find_difference(source: Source, other: Source, other_path: str) -> Difference:
    """Compare two checkpoints of any formats by the names of their tensors."""
    mine, theirs = _by_name(source.layout), _by_name(other.layout)
    reshaped, changed = [], []
    compared = compared_bytes = equal_bytes = 0
    scratches = Scratch(), Scratch()
    for name in [name for name in mine if name in theirs]:
        spec, other_spec = mine[name], theirs[name]
        if (spec.dtype, spec.shape) != (other_spec.dtype, other_spec.shape):
            reshaped.append(Reshaped(name, *spec[1:3], *other_spec[1:3]))
            continue
        blocks = read_blocks(source, spec, scratches[0])
        other_blocks = read_blocks(other, other_spec, scratches[1])
        change = _compare(spec, zip(blocks, other_blocks, strict=True))
        compared += 1
        compared_bytes += spec.nbytes
        equal_bytes += change.equal_bytes
        if change.equal_bytes < spec.nbytes:
            changed.append(change)
    return Difference(
        other=other_path,
        added=[TensorRow.of(spec) for name, spec in theirs.items() if name not in mine],
        removed=[TensorRow.of(spec) for name, spec in mine.items() if name not in theirs],
        reshaped=reshaped,
        changed=changed,
        compared=compared,
        compared_bytes=compared_bytes,
        equal_bytes=equal_bytes,
        equal_share=equal_bytes / compared_bytes if compared_bytes else 1.0,
        l2=in_float64(np.longdouble(math.hypot(*(tensor.l2 for tensor in changed)))),
    )


def _by_name(layout: Layout) -> dict[str, TensorInfo]:
    """Return the tensors by name, tied names included."""
    ties = layout.aliases.items()
    aliases = [layout.by_name[name]._replace(name=alias) for alias, name in ties]
    return {spec.name: spec for spec in (*layout.tensors, *aliases)}


def _compare(spec: TensorInfo, blocks: Iterable[tuple[memoryview, memoryview]]) -> Changed:
    """Compare a tensor of both checkpoints, by blocks of the same elements."""
    differing = non_finite = 0
    largest, squares = np.longdouble(0), np.longdouble(0)
    for block, other_block in blocks:
        differ = np.frombuffer(block, np.uint8) != np.frombuffer(other_block, np.uint8)
        if not differ.any():
            continue
        differing += int(np.count_nonzero(differ))
        with np.errstate(all="ignore"):  # non-finite elements are counted
            one, other = as_array(spec.dtype, block), as_array(spec.dtype, other_block)
            distances = np.abs(widened(one) - widened(other))
        finite = np.isfinite(distances)
        if not finite.all():
            is_changed = differ.reshape(len(finite), -1).any(axis=1)
            non_finite += int(np.count_nonzero(is_changed & ~finite))
            distances = distances[finite]
        largest = max(largest, distances.max(initial=0))
        squares += np.einsum("i,i->", distances, distances)
    return Changed(
        name=spec.name,
        bytes=spec.nbytes,
        equal_bytes=spec.nbytes - differing,
        l2=in_float64(np.sqrt(squares)),
        max_difference=int(largest) if spec.dtype[0] in "IU" else in_float64(largest),
        non_finite=non_finite,
    )
