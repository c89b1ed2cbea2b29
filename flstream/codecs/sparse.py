"""The codecs ``topk`` and ``ternary``: a block's largest changes and their places.

``topk`` is Aji and Heafield 2017, "Sparse communication for distributed gradient descent",
arXiv:1704.05021, with a fraction of each block instead of each tensor. ``ternary`` is the sparse
ternary compression of Sattler et al. 2019, "Robust and communication-efficient federated learning
from non-i.i.d. data", arXiv:1903.02891, with a fraction and a mean of each block instead of each
tensor, and places of 16 bits instead of their Golomb code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from flstream.codecs.block_codec import BLOCK, BlockPlace
from flstream.model.dtypes import BY_CODE, Numbers, loaded, number_type, quietly, stored

Places = np.ndarray[Any, np.dtype[np.uint16]]

# Places ascend; 16 bits are enough for those of a whole block.
assert BLOCK <= 1 << 16
_PLACE_BYTES = 2


def _count_of(fraction: float, count: int) -> int:
    """Return the count of a fraction of a block's numbers: at least one, rounded up."""
    return min(max(1, math.ceil(fraction * count)), count)


def _places_of_largest(numbers: Numbers, count: int, place: BlockPlace, codec: str) -> Places:
    """Return the places of the largest magnitudes, the first of equal ones."""
    # Bits of floats without their signs are in the order of the magnitudes, NaNs beyond them.
    size = 8 * numbers.itemsize
    keys = numbers.view(f"u{numbers.itemsize}") & ((1 << (size - 1)) - 1)
    infinite = np.array(np.inf, numbers.dtype).view(keys.dtype)
    if keys.max() >= infinite:
        index = int(np.argmax(keys >= infinite))
        raise place.refused(index, numbers[index], codec)
    rank = len(keys) - count
    least = np.partition(keys, rank)[rank]
    (places,) = np.nonzero(keys >= least)
    if len(places) > count:
        is_tie = keys[places] == least
        surplus = np.flatnonzero(is_tie)[count - len(places) :]
        places = np.delete(places, surplus)
    return places.astype(np.uint16)


def _checked_places(data: memoryview, place: BlockPlace, codec: str) -> Places:
    """Return a peer's places, if they ascend and do not leave the block."""
    places = np.frombuffer(data, np.uint16)
    if int(places[-1]) >= place.count:
        raise place.damaged(f"a number at place {places[-1]} of {place.count}", codec)
    if not (places[1:] > places[:-1]).all():
        raise place.damaged("places that do not ascend", codec)
    return places


@dataclass(frozen=True)
class TopK:
    """Keeps the largest numbers of a block, in the tensor's type; the others become 0.

    An encoded block has the places of its numbers in ascending order, then the numbers.

    Attributes:
        fraction: Fraction of a block's numbers that is kept, above 0 and at most 1, rounded up.
    """

    fraction: float = 0.01
    for_updates = True

    def nbytes(self, dtype: str, count: int) -> int:
        """Return the length in bytes of an encoded block."""
        return _count_of(self.fraction, count) * (_PLACE_BYTES + BY_CODE[dtype].itemsize)

    @quietly
    def encode(self, numbers: Numbers, place: BlockPlace) -> bytes:
        """Return the places and the largest numbers."""
        count = _count_of(self.fraction, place.count)
        places = _places_of_largest(numbers, count, place, "topk")
        return places.tobytes() + stored(place.dtype, numbers[places])

    @quietly
    def decode(self, data: memoryview, place: BlockPlace) -> Numbers:
        """Return the largest numbers at their places, and zeros."""
        head = _count_of(self.fraction, place.count) * _PLACE_BYTES
        places = _checked_places(data[:head], place, "topk")
        largest = loaded(place.dtype, data[head:])
        finite = np.isfinite(largest)
        if not finite.all():
            raise place.damaged(f"a number that is {largest[int(np.argmin(finite))]}", "topk")
        numbers = np.zeros(place.count, number_type(place.dtype))
        numbers[places] = largest
        return numbers


@dataclass(frozen=True)
class Ternary:
    """Turns a block's largest numbers into plus or minus their mean magnitude.

    An encoded block has the mean, the places in ascending order, then the signs, a bit each.

    Attributes:
        fraction: Fraction of a block's numbers that is kept, above 0 and at most 1, rounded up.
    """

    fraction: float = 0.04
    for_updates = True

    def nbytes(self, dtype: str, count: int) -> int:
        """Return the length in bytes of an encoded block."""
        chosen = _count_of(self.fraction, count)
        return number_type(dtype).itemsize + chosen * _PLACE_BYTES + -(-chosen // 8)

    @quietly
    def encode(self, numbers: Numbers, place: BlockPlace) -> bytes:
        """Return the mean, the places and the signs."""
        count = _count_of(self.fraction, place.count)
        places = _places_of_largest(numbers, count, place, "ternary")
        magnitudes = np.abs(numbers[places])
        largest = float(magnitudes.max())
        # Of float32 in float64, or correctly rounded: the same on every machine, in any order. Each
        # is divided, as the sum of the largest numbers may be beyond all.
        mean = min(math.fsum((magnitudes.astype(np.float64) / count).tolist()), largest)
        signs = np.packbits(np.signbit(numbers[places]))
        head = np.array(mean, numbers.dtype).tobytes()
        return head + places.tobytes() + signs.tobytes()

    @quietly
    def decode(self, data: memoryview, place: BlockPlace) -> Numbers:
        """Return plus or minus the mean at their places, and zeros."""
        kind = number_type(place.dtype)
        count = _count_of(self.fraction, place.count)
        head, tail = kind.itemsize, kind.itemsize + count * _PLACE_BYTES
        (mean,) = np.frombuffer(data[:head], kind)
        if not (np.isfinite(mean) and mean >= 0):
            raise place.damaged(f"a mean of {mean}", "ternary")
        places = _checked_places(data[head:tail], place, "ternary")
        is_negative = np.unpackbits(np.frombuffer(data[tail:], np.uint8), count=count).view(bool)
        numbers = np.zeros(place.count, kind)
        numbers[places] = np.where(is_negative, -mean, mean)
        return numbers
