"""The codec ``topk``: the largest changes alone, with their places.

Aji and Heafield 2017, "Sparse communication for distributed gradient descent", arXiv:1704.05021,
with a fraction of each block instead of each tensor. The choice of the largest is ternary's too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from flstream.codecs.block_codec import BLOCK, BlockPlace
from flstream.codecs.floats import Numbers, load, number_type, quietly, stored
from flstream.model.dtypes import BY_CODE

Places = np.ndarray[Any, np.dtype[np.uint16]]
"""Places in a block, ascending. 16 bits are enough for those of a whole one."""

assert BLOCK <= 1 << 16

PLACE_BYTES = 2
"""Bytes of a place."""


def count_of(fraction: float, count: int) -> int:
    """Return how many numbers are a fraction of a block's: at least one, rounded up."""
    return min(max(1, math.ceil(fraction * count)), count)


def places_of_largest(numbers: Numbers, count: int, place: BlockPlace, codec: str) -> Places:
    """Return where the numbers of the largest magnitude are.

    Of those of one magnitude the first are taken, so that the choice is always the same.

    Args:
        numbers: Numbers of the block.
        count: How many of them to choose, at least 1.
        place: Place of the block, for messages.
        codec: Name of the codec, for messages.

    Raises:
        CodecError: A number is infinite or NaN.
    """
    # Bits of floats without their signs are in the order of the magnitudes, NaNs beyond them.
    size = 8 * numbers.itemsize
    keys = numbers.view(f"u{numbers.itemsize}") & ((1 << (size - 1)) - 1)
    infinite = np.array(np.inf, numbers.dtype).view(keys.dtype)
    if keys.max() >= infinite:
        index = int(np.argmax(keys >= infinite))
        raise place.refused(index, numbers[index], codec)
    rank = len(keys) - count
    least = np.partition(keys, rank)[rank]
    (found,) = np.nonzero(keys >= least)
    if len(found) > count:
        is_tie = keys[found] == least
        surplus = np.flatnonzero(is_tie)[count - len(found) :]
        found = np.delete(found, surplus)
    return found.astype(np.uint16)


def checked_places(data: memoryview, place: BlockPlace, codec: str) -> Places:
    """Return places that a peer has sent.

    Raises:
        CodecError: They do not ascend, or leave the block.
    """
    places = np.frombuffer(data, np.uint16)
    if int(places[-1]) >= place.count:
        raise place.damaged(f"a number at place {places[-1]} of {place.count}", codec)
    if not (places[1:] > places[:-1]).all():
        raise place.damaged("places that do not ascend", codec)
    return places


@dataclass(frozen=True)
class TopK:
    """Keeps the largest numbers of a block as they are, in the tensor's type; the others become 0.

    An encoded block has the places of its numbers in ascending order, then the numbers.

    Attributes:
        fraction: Fraction of a block's numbers that is kept, above 0 and at most 1, rounded up.
    """

    fraction: float = 0.01
    for_updates = True

    def nbytes(self, dtype: str, count: int) -> int:
        """Return the length in bytes of an encoded block."""
        return count_of(self.fraction, count) * (PLACE_BYTES + BY_CODE[dtype].itemsize)

    @quietly
    def encode(self, numbers: Numbers, place: BlockPlace) -> bytes:
        """Return the places and the largest numbers.

        Raises:
            CodecError: A number is infinite or NaN.
        """
        kept = count_of(self.fraction, place.count)
        places = places_of_largest(numbers, kept, place, "topk")
        return places.tobytes() + stored(place.dtype, numbers[places])

    @quietly
    def decode(self, data: memoryview, place: BlockPlace) -> Numbers:
        """Return the largest numbers at their places, and zeros.

        Raises:
            CodecError: A place is twice there or outside of the block, or a number is infinite or
                NaN.
        """
        head = count_of(self.fraction, place.count) * PLACE_BYTES
        places = checked_places(data[:head], place, "topk")
        kept = load(place.dtype, data[head:])
        finite = np.isfinite(kept)
        if not finite.all():
            raise place.damaged(f"a number that is {kept[int(np.argmin(finite))]}", "topk")
        numbers = np.zeros(place.count, number_type(place.dtype))
        numbers[places] = kept
        return numbers
