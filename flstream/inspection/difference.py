"""Differences between two checkpoints, tensor by tensor, streamed from both."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from flstream.inspection.elements import BLOCK, LARGEST, SMALLEST, Array, as_array, read_blocks
from flstream.model.body import Scratch, Source
from flstream.model.dtypes import BY_CODE
from flstream.model.layout import Layout, TensorInfo


class Reshaped(NamedTuple):
    """A tensor that is in both checkpoints, with another dtype or shape.

    Attributes:
        name: name of the tensor.
        dtype: safetensors code of its type in the first checkpoint.
        shape: shape in the first checkpoint.
        other_dtype: safetensors code of its type in the other checkpoint.
        other_shape: shape in the other checkpoint.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    other_dtype: str
    other_shape: tuple[int, ...]


class Changed(NamedTuple):
    """A tensor that differs between two checkpoints in at least one byte.

    Attributes:
        name: name of the tensor.
        bytes: size of the tensor in bytes.
        equal_bytes: number of bytes that are the same in both.
        l2: Euclidean norm of the difference, over elements that are finite in both.
        max_difference: greatest absolute difference of elements that are finite in both, exact
            for integers.
        non_finite: number of elements that differ and are NaN or infinite in one of the two.
    """

    name: str
    bytes: int
    equal_bytes: int
    l2: float
    max_difference: float | int
    non_finite: int


class Difference(NamedTuple):
    """The difference between a checkpoint and another one.

    Attributes:
        other: path of the other checkpoint.
        added: tensors that only the other checkpoint has.
        removed: tensors that only the first checkpoint has.
        reshaped: tensors with another dtype or shape in the other checkpoint.
        changed: tensors that differ in at least one byte.
        compared: number of tensors that were compared byte by byte.
        compared_bytes: size of the compared tensors in bytes.
        equal_bytes: number of compared bytes that are the same.
    """

    other: str
    added: tuple[TensorInfo, ...]
    removed: tuple[TensorInfo, ...]
    reshaped: tuple[Reshaped, ...]
    changed: tuple[Changed, ...]
    compared: int
    compared_bytes: int
    equal_bytes: int

    @property
    def equal_share(self) -> float:
        """Share of the compared bytes that are the same, from 0 to 1; 1 if none were compared."""
        return self.equal_bytes / self.compared_bytes if self.compared_bytes else 1.0

    @property
    def l2(self) -> float:
        """Euclidean norm of the difference over all changed tensors."""
        return min(math.hypot(*(each.l2 for each in self.changed)), sys.float_info.max)

    def document(self) -> dict[str, Any]:
        """Convert the difference to JSON."""
        return {
            **self._asdict(),
            "added": [_described(spec) for spec in self.added],
            "removed": [_described(spec) for spec in self.removed],
            "reshaped": [
                {**each._asdict(), "shape": list(each.shape), "other_shape": list(each.other_shape)}
                for each in self.reshaped
            ],
            "changed": [each._asdict() for each in self.changed],
            "equal_share": self.equal_share,
            "l2": self.l2,
        }


def find_difference(
    source: Source, other: Source, other_path: str, wanted: Collection[str]
) -> Difference:
    """Compare two checkpoints of any formats by the names of their tensors.

    A tied name stands for the tensor that it is tied to.

    Args:
        source: the first checkpoint.
        other: the other checkpoint.
        other_path: path of the other checkpoint.
        wanted: names of the tensors to compare.

    Returns:
        The difference.

    Raises:
        CheckpointError: one of the checkpoints cannot be read.
    """
    mine, theirs = _by_name(source.layout, wanted), _by_name(other.layout, wanted)
    reshaped, changed = [], []
    compared = compared_bytes = equal_bytes = 0
    scratches = Scratch(), Scratch()
    for name in mine:
        if name not in theirs:
            continue
        left, right = mine[name], theirs[name]
        if (left.dtype, left.shape) != (right.dtype, right.shape):
            reshaped.append(Reshaped(name, left.dtype, left.shape, right.dtype, right.shape))
            continue
        tally = _compare(source, left, other, right, scratches)
        compared += 1
        compared_bytes += left.nbytes
        equal_bytes += left.nbytes - tally.differing
        if tally.differing:
            changed.append(tally.close(name, left.nbytes))
    return Difference(
        other=other_path,
        added=tuple(spec for name, spec in theirs.items() if name not in mine),
        removed=tuple(spec for name, spec in mine.items() if name not in theirs),
        reshaped=tuple(reshaped),
        changed=tuple(changed),
        compared=compared,
        compared_bytes=compared_bytes,
        equal_bytes=equal_bytes,
    )


def _by_name(layout: Layout, wanted: Collection[str]) -> dict[str, TensorInfo]:
    """Return the wanted tensors by name, tied names included."""
    ties = layout.aliases.items()
    aliases = [layout.by_name[name]._replace(name=alias) for alias, name in ties]
    return {spec.name: spec for spec in (*layout.tensors, *aliases) if spec.name in wanted}


def _described(spec: TensorInfo) -> dict[str, Any]:
    return {
        "name": spec.name,
        "dtype": spec.dtype,
        "shape": list(spec.shape),
        "bytes": spec.nbytes,
    }


class _DifferenceTally:
    """Difference of two tensors, accumulated block by block."""

    def __init__(self, spec: TensorInfo) -> None:
        self.differing = 0
        self._squares = np.longdouble(0)
        self._max: float | int = 0
        self._non_finite = 0
        # Reused for all blocks: fresh pages would cost more than the computation.
        elements = min(BLOCK, spec.elements)
        self._differ = np.empty(elements * BY_CODE[spec.dtype].itemsize, np.bool_)
        self._floats = np.empty(elements)

    def add(self, code: str, left: memoryview, right: memoryview) -> None:
        """Add a block of each tensor: bytes of the same elements of both."""
        differ = self._differ[: len(left)]
        np.not_equal(np.frombuffer(left, np.uint8), np.frombuffer(right, np.uint8), out=differ)
        count = int(np.count_nonzero(differ))
        if not count:
            return
        self.differing += count
        one, two = as_array(code, left), as_array(code, right)
        if one.dtype.kind in "iu":
            self._add_integers(one, two)
        else:
            self._add_floats(one, two, differ)

    def _add_integers(self, one: Array, two: Array) -> None:
        # Unsigned, the distance of any two integers is exact.
        high = np.maximum(one, two).astype(np.int64 if one.dtype.kind == "i" else np.uint64)
        low = np.minimum(one, two).astype(high.dtype)
        distances = high.view(np.uint64) - low.view(np.uint64)
        self._max = max(self._max, int(distances.max()))
        numbers = distances.astype(np.float64)
        self._squares += np.einsum("i,i->", numbers, numbers)

    def _add_floats(self, one: Array, two: Array, differ: Array) -> None:
        if one.dtype.kind == "c":
            wide = np.subtract(one, two, dtype=np.complex128)
            distances = np.hypot(wide.real, wide.imag)
        else:
            distances = self._floats[: len(one)]
            if one.dtype.kind == "b":
                np.not_equal(one, two, out=distances)
            else:
                np.subtract(one, two, out=distances, dtype=np.float64)
        largest = float(max(distances.max(), -distances.min()))
        if not math.isfinite(largest):
            finite = np.isfinite(one) & np.isfinite(two)
            changed = differ.reshape(len(finite), -1).any(axis=1)
            self._non_finite += int(np.count_nonzero(changed & ~finite))
            if not finite.any():
                return
            # The difference of finite elements may still be outside the range of float64.
            one, two = one[finite], two[finite]
            widest = np.clongdouble if one.dtype.kind == "c" else np.longdouble
            distances = np.abs(one.astype(widest) - two.astype(widest))
            largest = float(min(distances.max(), sys.float_info.max))
        elif largest and not SMALLEST < largest < LARGEST:
            distances = distances.astype(np.longdouble)
        self._max = max(self._max, largest)
        self._squares += np.einsum("i,i->", distances, distances)

    def close(self, name: str, nbytes: int) -> Changed:
        """Return the difference of all blocks, for a tensor of this name and size in bytes."""
        norm = min(np.sqrt(self._squares), np.longdouble(sys.float_info.max))
        return Changed(
            name, nbytes, nbytes - self.differing, float(norm), self._max, self._non_finite
        )


def _compare(
    source: Source,
    spec: TensorInfo,
    other: Source,
    other_spec: TensorInfo,
    scratches: tuple[Scratch, Scratch],
) -> _DifferenceTally:
    tally = _DifferenceTally(spec)
    blocks = read_blocks(source, spec, scratches[0]), read_blocks(other, other_spec, scratches[1])
    with np.errstate(all="ignore"):
        for left, right in zip(*blocks, strict=True):
            tally.add(spec.dtype, left, right)
    return tally
