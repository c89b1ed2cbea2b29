"""Differences between two checkpoints, tensor by tensor, streamed from both."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

import msgspec
import numpy as np

from flstream.inspection.statistics import TensorRow, as_array, in_float64, read_blocks, widened
from flstream.model.layout import Layout, TensorInfo
from flstream.model.source import Scratch, Source


class Reshaped(msgspec.Struct, frozen=True):
    """A tensor whose dtype or shape is another one in the other checkpoint."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    other_dtype: str
    other_shape: tuple[int, ...]


class Changed(msgspec.Struct, frozen=True):
    """A tensor that differs between two checkpoints in at least one byte."""

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


def find_difference(
    source: Source, other: Source, other_path: str, wanted: Collection[str]
) -> Difference:
    """Compare two checkpoints of any formats by the names of their tensors.

    Args:
        source: The first checkpoint.
        other: The other checkpoint.
        other_path: Path of the other checkpoint.
        wanted: Names of the tensors to compare; a tied name stands for its tensor.

    Raises:
        CheckpointError: One of the checkpoints cannot be read.
    """
    mine, theirs = _by_name(source.layout, wanted), _by_name(other.layout, wanted)
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


def _by_name(layout: Layout, wanted: Collection[str]) -> dict[str, TensorInfo]:
    """Wanted tensors by name, tied names included."""
    ties = layout.aliases.items()
    aliases = [layout.by_name[name]._replace(name=alias) for alias, name in ties]
    return {spec.name: spec for spec in (*layout.tensors, *aliases) if spec.name in wanted}


def _compare(spec: TensorInfo, blocks: Iterable[tuple[memoryview, memoryview]]) -> Changed:
    """Compare a tensor of both checkpoints by blocks with the bytes of the same elements."""
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
