"""The codecs ``int8`` and ``int4``: whole numbers, with a scale for each group.

Symmetric quantisation by the largest magnitude, as in Dettmers et al. 2022, "8-bit optimizers via
block-wise quantization", arXiv:2110.02861, with steps of one size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from flstream.codecs.block_codec import BLOCK, BlockPlace
from flstream.model.dtypes import LARGEST, MANTISSA_BITS, SMALLEST, Numbers, number_type, quietly

# Groups from here on are reduced row by row; for shorter rows that takes longer than all the rest.
_LONG_ROW = 256


@dataclass(frozen=True)
class Quantised:
    """Rounds every number to a multiple of a scale, by at most half the scale.

    An encoded block has the scales of its groups, then its whole numbers. Those of 4 bits are above
    by 8, two in a byte, the lower half first.

    Attributes:
        bits: Bits of a whole number.
        group: Numbers that share a scale, an even divisor of 65536.
        of_models: Whether scales are such that decoded numbers are encoded to the same bytes again:
            rounded up to so few bits that their products are exact in the tensor's type. That makes
            errors larger by 1/65536 in float32; in types of few bits scales become powers of two,
            and errors up to twice as large.
    """

    bits: Literal[4, 8]
    group: int
    of_models: bool = False
    for_updates = False

    def __post_init__(self) -> None:
        if self.group < 2 or BLOCK % self.group:
            raise ValueError(f"a group of {self.group} is no even divisor of {BLOCK}")

    @property
    def _most(self) -> int:
        return (1 << (self.bits - 1)) - 1

    def nbytes(self, dtype: str, count: int) -> int:
        """Return the length in bytes of an encoded block."""
        return self._scales_bytes(dtype, count) + -(-count * self.bits // 8)

    def _scales_bytes(self, dtype: str, count: int) -> int:
        return -(-count // self.group) * number_type(dtype).itemsize

    @quietly
    def encode(self, numbers: Numbers, place: BlockPlace) -> bytes:
        """Return the scales and the whole numbers."""
        count = len(numbers)
        rest = -count % self.group
        rows = np.pad(numbers, (0, rest)) if rest else numbers
        rows = rows.reshape(-1, self.group)
        largest = _largest(rows)
        if not np.isfinite(largest).all():
            index = int(np.argmin(np.isfinite(numbers)))
            raise place.refused(index, numbers[index], f"int{self.bits}")
        scales = largest / self._most
        # A scale that was rounded down, as the smallest are by half, would cut its largest number.
        np.nextafter(scales, np.inf, out=scales, where=scales * self._most < largest)
        if self.of_models:
            scales = _with_exact_products(scales, place.dtype, self.bits)
        divisors = np.where(scales == 0, scales.dtype.type(1), scales)
        whole = np.rint(rows / divisors[:, None]).astype(np.int8).reshape(-1)
        if self.bits == 4:
            # Pairs as numbers of 16 bits, whose halves are in as many bits of a byte then.
            pairs = (whole + 8).view(np.uint16)
            whole = (pairs | pairs >> 4).astype(np.uint8)
        return bytes(scales) + bytes(whole[: -(-count * self.bits // 8)])

    @quietly
    def decode(self, data: memoryview, place: BlockPlace) -> Numbers:
        """Return the products of whole numbers and scales."""
        kind = number_type(place.dtype)
        head = self._scales_bytes(place.dtype, place.count)
        scales = np.frombuffer(data[:head], kind)
        if not (np.isfinite(scales).all() and (scales >= 0).all()):
            wrong = scales[~(scales >= 0) | np.isinf(scales)][0]
            raise place.damaged(f"a scale of {wrong}", f"int{self.bits}")
        whole = np.frombuffer(data[head:], np.int8)
        if self.bits == 4:
            pairs = whole.view(np.uint8).astype(np.uint16)
            whole = ((pairs | pairs << 4) & 0x0F0F).view(np.int8)[: place.count] - 8
        numbers = whole.astype(kind)
        full = place.count // self.group
        rows = numbers[: full * self.group].reshape(full, self.group)
        rows *= scales[:full, None]
        numbers[full * self.group :] *= scales[-1]
        most = LARGEST[place.dtype] if self.of_models else float(np.finfo(kind).max)
        if scales.max() > most / 256:  # what was rounded up may go beyond all numbers
            np.clip(numbers, -most, most, out=numbers)
        return numbers


def _with_exact_products(scales: Numbers, dtype: str, bits: int) -> Numbers:
    """Round scales up, so that their products with integers are exact in a type.

    The largest whole number of a group times its scale then has the same scale again. That holds
    where as many bits are left as let the largest be the largest of all (127 of 8 bits), and for
    powers of two, where the half of a scale is that of half the largest. Scales are 0 or above;
    ``bits`` includes the sign of a whole number.
    """
    scale_bits = MANTISSA_BITS[dtype] - (bits - 1)
    least = SMALLEST[dtype]
    _, exponents = np.frexp(scales)
    one = scales.dtype.type(1)
    units = np.ldexp(one, exponents - scale_bits)
    is_coarse = (units < least) | (scale_bits <= bits)
    units = np.where(is_coarse, np.maximum(np.ldexp(one, exponents - 1), least), units)
    return np.asarray(np.ceil(scales / units) * units, scales.dtype)


def _largest(rows: Numbers) -> Numbers:
    """Return the largest magnitude of each row; NaN where there is one."""
    magnitudes = np.abs(rows)
    if rows.shape[1] >= _LONG_ROW:
        return np.asarray(magnitudes.max(axis=1))
    magnitudes = magnitudes.reshape(-1)
    while len(magnitudes) > len(rows):
        magnitudes = np.maximum(magnitudes[::2], magnitudes[1::2])
    return magnitudes
