"""The elements of a range as numbers, read and written some thousands at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from flstream.model.dtypes import BY_CODE

Array = np.ndarray[Any, Any]

# Elements processed at a time. A block in float64 (1 MiB) stays in the L3 cache with the one that
# is added to it. A quarter of it stays in L2, and is slower nevertheless: summing takes 1.4 times
# as long, for each call of NumPy gives Python's lock away, and other threads of the walk take it.
# Folding two updates of 1 GiB took 0.85 of the time. Twice as many are no faster.
BLOCK = 131_072
# Elements of a block where a step makes many temporary arrays: six of these take 192 KiB.
SMALL_BLOCK = 4096

INTEGERS = frozenset(code for code in BY_CODE if code[0] in "IU")
# Powers of two without sign or zero, such as the scales of blocks: no difference of two is one.
SCALES = frozenset({"F8_E8M0"})
# Types that optimizers change, that norms include, and that can be infinite or NaN.
FLOATS = frozenset(BY_CODE) - INTEGERS - SCALES - {"BOOL"}

_PARTS = {"C64": "float32", "C128": "float64"}
# For small types the bits that tell, and what they are in an infinity or a NaN and in no finite
# number. NumPy's own test is fast only for larger types.
_NOT_FINITE = {
    "F16": (0x7C00, 0x7C00),
    "BF16": (0x7F80, 0x7F80),
    "F8_E4M3": (0x7F, 0x7F),
    "F8_E5M2": (0x7C, 0x7C),
    "F8_E4M3FNUZ": (0xFF, 0x80),
    "F8_E5M2FNUZ": (0xFF, 0x80),
    "F8_E8M0": (0xFF, 0xFF),
}


# For folding: numbers that are not finite are found in the results, and reported there.
quietly = np.errstate(over="ignore", invalid="ignore")


def unit(dtype: str) -> int:
    """Return the bytes of one number. A complex element is two numbers, its parts."""
    return BY_CODE[dtype].itemsize // (2 if dtype in _PARTS else 1)


def block_room(codes: Iterable[str], step: int) -> Array:
    """Allocate float64 memory for any block of a range of ``step`` bytes of these element types."""
    return np.empty(min(BLOCK, step // min(map(unit, codes), default=1)))


def blocks(length: int, size: int = BLOCK) -> Iterator[slice]:
    """Cut ``length`` elements into blocks of ``size``; the last may be shorter."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


class Elements:
    """The numbers in a piece of a body, all of one element type.

    Args:
        dtype: Element type; the parts of a complex one count as numbers of their own.
        data: Bytes of at least one element.
    """

    def __init__(self, dtype: str, data: memoryview) -> None:
        self._dtype = dtype
        self._data = data
        name = _PARTS.get(dtype, BY_CODE[dtype].numpy_name)
        self._torch: Any = None
        if name is None:
            import torch

            from flstream.model.dtypes import torch_dtype

            self._torch = torch.frombuffer(data, dtype=torch_dtype(dtype))
            self._wrap = torch.from_numpy
        else:
            self._numpy: Array = np.frombuffer(data, dtype=name)

    def native(self) -> Array:
        """Return the numbers in place, as integers or bools."""
        return self._numpy

    def load(self, part: slice, block: Array) -> None:
        """Copy a block into a float64 array."""
        if self._torch is None:
            np.copyto(block, self._numpy[part], casting="unsafe")
        else:
            self._wrap(block).copy_(self._torch[part])

    def store(self, part: slice, block: Array) -> None:
        """Round a float64 block once to the element type, and write it.

        A bool is true where the number is above 0.5.
        """
        if self._dtype == "BOOL":
            np.greater(block, 0.5, out=self._numpy[part])
        elif self._torch is None:
            np.copyto(self._numpy[part], block, casting="unsafe")
        else:
            self._torch[part].copy_(self._wrap(_to_odd(block)))

    def first_not_finite(self, part: slice) -> int | None:
        """Return the index of the first infinity or NaN in a block of floats, or None."""
        if self._dtype not in _NOT_FINITE:
            return first_not_finite(self._numpy[part], part.start)
        bits = np.frombuffer(self._data, f"u{unit(self._dtype)}")[part]
        mask, value = map(bits.dtype.type, _NOT_FINITE[self._dtype])
        found = (bits & mask) == value
        return part.start + int(np.argmax(found)) if found.any() else None


def first_not_finite(block: Array, start: int) -> int | None:
    """Return ``start`` plus the index of the first infinity or NaN in a block, or None."""
    finite = np.isfinite(block)
    return None if finite.all() else start + int(np.argmin(finite))


def _to_odd(block: Array) -> Array:
    """Round float64 to float32 so that a further rounding gives the result of a single one.

    torch converts to its small types by way of float32. A number that is not exact in float32 must
    not look like a tie of those types, so it gets an odd last bit.
    """
    rounded = block.astype(np.float32)
    bits = rounded.view(np.uint32)
    # Ties of types with 7 bits of mantissa or fewer end in this many zeros. Few others do.
    (near,) = np.nonzero((bits & 0x7FFF) == 0)
    for part in blocks(len(near), SMALL_BLOCK):
        at = near[part]
        exact, given = block[at], rounded[at]
        bits[at] -= np.abs(given) > np.abs(exact)  # towards zero
        bits[at] |= given != exact
    return rounded
