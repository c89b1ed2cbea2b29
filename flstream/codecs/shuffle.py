"""The byte-shuffle: first bytes of all numbers, then all second bytes, and so on.

Numbers of a model are alike in their signs and exponents and differ in their last bits. Side by
side, the bytes that are alike compress well. As in HDF5 and Blosc (Alted 2010, "Why modern CPUs are
starving and what can be done about it", doi:10.1109/MCSE.2010.51).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from flstream.codecs.frame_codec import FramePlace
from flstream.model.dtypes import BY_CODE
from flstream.model.layout import Layout

# Elements of which temporary arrays are made: they stay in the L2 cache.
_SLICE = 1 << 16


class _SizedSpan(NamedTuple):
    """Whole elements of one size in a frame.

    Attributes:
        start: Offset in bytes from the frame's first byte.
        stop: Offset after the last one.
        itemsize: Bytes of an element; 1 for bytes that stay as they are.
    """

    start: int
    stop: int
    itemsize: int


class Shuffle:
    """The step ``shuffle``. Elements that the frame's ends cut stay as they are."""

    name = "shuffle"
    needs_base = False

    def apply(
        self, data: memoryview, out: memoryview, place: FramePlace, base: memoryview | None
    ) -> None:
        """Write the shuffled bytes."""
        for start, stop, itemsize in _spans(*place):
            if itemsize == 1:
                out[start:stop] = data[start:stop]
                continue
            words, planes = _views(data[start:stop], out[start:stop], itemsize)
            for first in range(0, words.shape[0], _SLICE):
                part = slice(first, first + _SLICE)
                for index, plane in enumerate(planes):
                    word, byte = divmod(index, words.dtype.itemsize)
                    np.right_shift(words[part, word], 8 * byte, out=plane[part], casting="unsafe")

    def undo(
        self, data: memoryview, out: memoryview, place: FramePlace, base: memoryview | None
    ) -> None:
        """Write the bytes as they were."""
        for start, stop, itemsize in _spans(*place):
            if itemsize == 1:
                out[start:stop] = data[start:stop]
                continue
            words, planes = _views(out[start:stop], data[start:stop], itemsize)
            for first in range(0, words.shape[0], _SLICE):
                part = slice(first, first + _SLICE)
                for word in range(words.shape[1]):
                    own = planes[word * words.dtype.itemsize : (word + 1) * words.dtype.itemsize]
                    made = own[0, part].astype(words.dtype)
                    for byte in range(1, len(own)):
                        made |= own[byte, part].astype(words.dtype) << (8 * byte)
                    words[part, word] = made


Array = np.ndarray[Any, Any]


def _views(whole: memoryview, planes: memoryview, itemsize: int) -> tuple[Array, Array]:
    """Return elements as rows of little-endian words, and the planes of their bytes."""
    size = min(itemsize, 8)
    words = np.frombuffer(whole, f"<u{size}").reshape(-1, itemsize // size)
    return words, np.frombuffer(planes, np.uint8).reshape(itemsize, -1)


def _spans(layout: Layout, start: int, stop: int) -> Iterator[_SizedSpan]:
    """Cut a frame into pieces of one element size, so that they cover it."""
    reached = start
    for first, last, itemsize in _sizes(layout, start, stop):
        yield from _between(reached, first, start)
        whole = first + (last - first) // itemsize * itemsize
        if whole > first:
            yield _SizedSpan(first - start, whole - start, itemsize)
        reached = whole
    yield from _between(reached, stop, start)


def _between(first: int, last: int, start: int) -> Iterator[_SizedSpan]:
    if last > first:
        yield _SizedSpan(first - start, last - start, 1)


def _sizes(layout: Layout, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield ranges in which elements of one size follow each other, each from a whole element on.

    Tensors of one size are side by side in a body, whatever their types.
    """
    reached = start
    run: tuple[int, int, int] | None = None
    for spec in layout.overlapping(start, stop):
        itemsize = BY_CODE[spec.dtype].itemsize
        reached = max(start, spec.start)
        first = reached + (spec.start - reached) % itemsize
        last = min(stop, spec.stop)
        if run is not None and run[1] == first and run[2] == itemsize:
            run = (run[0], last, itemsize)
            continue
        if run is not None:
            yield run
        run = (first, last, itemsize) if first < last else None
    if run is not None:
        yield run
