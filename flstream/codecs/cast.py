"""The codec ``cast``: numbers of fewer bits, bfloat16 or float16."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flstream.codecs.block_codec import BlockPlace
from flstream.model.dtypes import BY_CODE, LARGEST, Numbers, loaded, quietly, stored

_CODES = {"bf16": "BF16", "f16": "F16"}


@dataclass(frozen=True)
class Cast:
    """Rounds every number once to 16 bits, to the nearest, and of two to the even one.

    Infinities and NaNs pass, for the server to find them. What is decoded is encoded again to the
    same bits.

    Attributes:
        to: ``bf16``, which has the range of float32 and 8 bits of mantissa, or ``f16``, which
            has 11 and is refused numbers beyond 65504.
    """

    to: str = "bf16"
    for_updates = False

    @property
    def _code(self) -> str:
        return _CODES[self.to]

    def nbytes(self, dtype: str, count: int) -> int:
        """Return the length in bytes of an encoded block: two for each number."""
        return count * BY_CODE[self._code].itemsize

    @quietly
    def encode(self, numbers: Numbers, place: BlockPlace) -> bytes:
        """Return the rounded numbers."""
        data = stored(self._code, numbers)
        lowest, highest = float(numbers.min()), float(numbers.max())
        # NaNs hide what else is there.
        if not -LARGEST[self._code] <= lowest <= highest <= LARGEST[self._code]:
            rounded = loaded(self._code, memoryview(data))
            beyond = np.isfinite(numbers) & ~np.isfinite(rounded)
            if beyond.any():
                index = int(np.argmax(beyond))
                raise place.refused(index, numbers[index], f"cast to {self.to}")
        return data

    @quietly
    def decode(self, data: memoryview, place: BlockPlace) -> Numbers:
        """Return the rounded numbers."""
        return loaded(self._code, data)
