"""The codec ``topk``: the largest changes alone, with their places.

Aji and Heafield 2017, "Sparse communication for distributed gradient descent", arXiv:1704.05021,
with a fraction of each block instead of each tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flstream.codecs.block_codec import BlockPlace
from flstream.codecs.floats import Numbers, load, number_type, quietly, stored
from flstream.codecs.largest import PLACE_BYTES, checked_places, count_of, places_of_largest
from flstream.model.dtypes import BY_CODE


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
