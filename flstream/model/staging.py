"""Ranges of tensors whose elements lie in memory in another order than in the body.

Such a tensor (transposed, strided, expanded, reversed) has no view that is a range of the body. Its
ranges are gathered into a buffer, which takes memory for the range and not for the tensor.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from flstream.model.dtypes import bits_dtype
from flstream.model.source import Scratch

Array = np.ndarray[Any, np.dtype[Any]]

# Where neighbours in memory are far apart in the body, a plain copy uses one element of every
# cache line that it loads. Narrow tiles use the whole line before it is evicted: on a transposed
# matrix of 4096 x 4096 floats that is eight times as fast, and 64 was the best of 16 to 256.
_TILE = 64
# With fewer rows, starting the copy of a tile costs more than the tile saves.
_TILED_ROWS = 16


class Strided:
    """The bytes of an array that is not contiguous.

    Args:
        array: Array of any shape and strides, not empty.
    """

    def __init__(self, array: Array) -> None:
        self._array = array.view(bits_dtype(array.itemsize))

    def __len__(self) -> int:
        return int(self._array.nbytes)

    def room(self, start: int, stop: int) -> int:
        """Return the bytes that :meth:`gather` needs as room for ``[start, stop)``."""
        first, last = self._elements(start, stop)
        return (last - first) * self._array.itemsize

    def gather(self, start: int, stop: int, room: memoryview) -> memoryview:
        """Copy the bytes ``[start, stop)``, at least one, into ``room``; return a view of them."""
        first, last = self._elements(start, stop)
        size = self._array.itemsize
        out = np.frombuffer(room, self._array.dtype, last - first)
        _gather(self._array, first, last, out)
        return room[start - first * size : stop - first * size]

    def _elements(self, start: int, stop: int) -> tuple[int, int]:
        size = self._array.itemsize
        return start // size, -(-stop // size)


class Staged(Protocol):
    """The bytes of one tensor that has none in place: ranges of them are gathered elsewhere."""

    def __len__(self) -> int: ...

    def room(self, start: int, stop: int) -> int:
        """Return the bytes that :meth:`gather` needs as room for ``[start, stop)``."""
        ...

    def gather(self, start: int, stop: int, room: memoryview) -> memoryview:
        """Copy the bytes ``[start, stop)``, at least one, into ``room``; return a view of them."""
        ...


Piece = memoryview | Staged
"""The bytes of one tensor: in place, or to be gathered."""


def piece_of(array: Array) -> Piece:
    """Return the bytes of an array, over its own memory."""
    if array.flags.c_contiguous:
        return array.reshape(-1).view(np.uint8).data
    return Strided(array)


def read_piece(piece: Piece, start: int, stop: int, scratch: Scratch) -> memoryview:
    """Return the bytes ``[start, stop)`` of one tensor, in place or gathered into ``scratch``."""
    if not isinstance(piece, memoryview):
        return piece.gather(start, stop, scratch.take(piece.room(start, stop)))
    return piece[start:stop]


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
    last, left = divmod(stop, row)
    if first == last:
        _gather(array[first], skipped, left, out)
        return
    if skipped:
        _gather(array[first], skipped, row, out[: row - skipped])
        out = out[row - skipped :]
        first += 1
    whole = (last - first) * row
    if whole:
        _copy_rows(array[first:last], out[:whole].reshape(last - first, *array.shape[1:]))
    if left:
        _gather(array[last], 0, left, out[whole:])


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
