"""The codec ``ternary``: the largest changes alone, each by its sign and the mean of all.

The sparse ternary compression of Sattler et al. 2019, "Robust and communication-efficient
federated learning from non-i.i.d. data", arXiv:1903.02891, with a fraction and a mean of each block
instead of each tensor, and places of 16 bits instead of their Golomb code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flstream.codecs.block_codec import BlockPlace
from flstream.codecs.floats import Numbers, number_type, quietly
from flstream.codecs.topk import PLACE_BYTES, checked_places, count_of, places_of_largest


@dataclass(frozen=True)
class Ternary:
    """Turns the largest numbers of a block into plus or minus their mean magnitude, others into 0.

    An encoded block has the mean, the places in ascending order, then the signs, a bit each.

    Attributes:
        fraction: Fraction of a block's numbers that is kept, above 0 and at most 1, rounded up.
    """

    fraction: float = 0.04
    for_updates = True

    def nbytes(self, dtype: str, count: int) -> int:
        """Return the length in bytes of an encoded block."""
        kept = count_of(self.fraction, count)
        return number_type(dtype).itemsize + kept * PLACE_BYTES + -(-kept // 8)

    @quietly
    def encode(self, numbers: Numbers, place: BlockPlace) -> bytes:
        """Return the mean, the places and the signs.

        Raises:
            CodecError: A number is infinite or NaN.
        """
        count = count_of(self.fraction, place.count)
        places = places_of_largest(numbers, count, place, "ternary")
        kept = numbers[places]
        # Of float32 in float64, or correctly rounded: the same on every machine, in any order. Each
        # is divided, as the sum of the largest numbers may be beyond all.
        mean = min(math.fsum((np.abs(kept).astype(np.float64) / count).tolist()), _largest(kept))
        signs = np.packbits(np.signbit(kept))
        head = np.array(mean, numbers.dtype).tobytes()
        return head + places.tobytes() + signs.tobytes()

    @quietly
    def decode(self, data: memoryview, place: BlockPlace) -> Numbers:
        """Return plus or minus the mean at their places, and zeros.

        Raises:
            CodecError: A place is twice there or outside of the block, or the mean is negative,
                infinite or NaN.
        """
        kind = number_type(place.dtype)
        count = count_of(self.fraction, place.count)
        head, tail = kind.itemsize, kind.itemsize + count * PLACE_BYTES
        (mean,) = np.frombuffer(data[:head], kind)
        if not (np.isfinite(mean) and mean >= 0):
            raise place.damaged(f"a mean of {mean}", "ternary")
        places = checked_places(data[head:tail], place, "ternary")
        is_negative = np.unpackbits(np.frombuffer(data[tail:], np.uint8), count=count).view(bool)
        numbers = np.zeros(place.count, kind)
        numbers[places] = np.where(is_negative, -mean, mean)
        return numbers


def _largest(kept: Numbers) -> float:
    return float(np.abs(kept).max())
