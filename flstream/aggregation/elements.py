"""The elements of a range: read and written as numbers, some thousands at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from flstream.model.dtypes import BY_CODE

Array = np.ndarray[Any, Any]

# Elements worked on at a time. A block in float64 (256 KiB) stays in the L2 cache with the one that
# is added to it, and Python's work for each shows less than with half of it: measured 1.05 times as
# fast in a round.
BLOCK = 32_768
# Where a step makes many temporary arrays: half a dozen of these are 192 KiB.
SMALL_BLOCK = 4096

INTEGERS = frozenset(code for code in BY_CODE if code[0] in "IU")
# What an optimiser works on, a norm is taken of, and what can be infinite or not a number.
FLOATS = frozenset(BY_CODE) - INTEGERS - {"BOOL"}

# The bits that an infinity or a NaN of a small type has set, all of them, and no finite number
# has. NumPy's own test is quick only for larger types.
_NOT_FINITE = {"F16": 0x7C00, "BF16": 0x7F80, "F8_E4M3": 0x7F, "F8_E5M2": 0x7C}


# For whoever folds: what is not finite is found in the results, and told there.
quietly = np.errstate(over="ignore", invalid="ignore")


def unit(dtype: str) -> int:
    """Bytes of one number. A complex element is two of them: it is worked on by its parts."""
    return 4 if dtype == "C64" else BY_CODE[dtype].itemsize


def block_room(codes: Iterable[str], step: int) -> Array:
    """Room in float64 for any block of a range of ``step`` bytes of these element types."""
    return np.empty(min(BLOCK, step // min(map(unit, codes), default=1)))


def blocks(length: int, size: int = BLOCK) -> Iterator[slice]:
    """Cut ``length`` elements into blocks of ``size``; the last may be shorter."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


class Elements:
    """The numbers in a piece of a body, all of one element type.

    Args:
        dtype: their type; the parts of C64 count as numbers of their own.
        data: their bytes, at least one element.
    """

    def __init__(self, dtype: str, data: memoryview) -> None:
        self._dtype = dtype
        self._data = data
        name = "float32" if dtype == "C64" else BY_CODE[dtype].numpy_name
        self._torch: Any = None
        if name is None:
            import torch

            from flstream.model.dtypes import torch_dtype

            self._torch = torch.frombuffer(data, dtype=torch_dtype(dtype))
            self._wrap = torch.from_numpy
        else:
            self._numpy: Array = np.frombuffer(data, dtype=name)

    def native(self) -> Array:
        """The numbers in place: for integers and bools."""
        return self._numpy

    def load(self, part: slice, block: Array) -> None:
        """Copy a block into float64."""
        if self._torch is None:
            np.copyto(block, self._numpy[part], casting="unsafe")
        else:
            self._wrap(block).copy_(self._torch[part])

    def store(self, part: slice, block: Array) -> None:
        """Round a block to the element type, once, and write it; a bool is what exceeds a half."""
        if self._dtype == "BOOL":
            np.greater(block, 0.5, out=self._numpy[part])
        elif self._torch is None:
            np.copyto(self._numpy[part], block, casting="unsafe")
        else:
            self._torch[part].copy_(self._wrap(_to_odd(block)))

    def first_not_finite(self, part: slice) -> int | None:
        """The index of the first infinity or NaN in a block of floats, if it has one."""
        if self._dtype not in _NOT_FINITE:
            return first_not_finite(self._numpy[part], part.start)
        bits = np.frombuffer(self._data, f"u{unit(self._dtype)}")[part]
        mask = bits.dtype.type(_NOT_FINITE[self._dtype])
        found = (bits & mask) == mask
        return part.start + int(np.argmax(found)) if found.any() else None


def first_not_finite(block: Array, start: int) -> int | None:
    """``start`` and the index of the first infinity or NaN in a block, or None."""
    finite = np.isfinite(block)
    return None if finite.all() else start + int(np.argmin(finite))


def _to_odd(block: Array) -> Array:
    """Round float64 to float32 such that a further rounding gives what one alone would.

    torch converts to its small types by way of float32. What is not exact there must not look
    like a tie of those, so it gets an odd last bit.
    """
    rounded = block.astype(np.float32)
    bits = rounded.view(np.uint32)
    # Ties of types with 7 bits of mantissa or fewer end in so many zeros. Few others do.
    (near,) = np.nonzero((bits & 0x7FFF) == 0)
    for part in blocks(len(near), SMALL_BLOCK):
        at = near[part]
        exact, given = block[at], rounded[at]
        bits[at] -= np.abs(given) > np.abs(exact)  # towards zero
        bits[at] |= given != exact
    return rounded
