"""Blocks: the elements of a range some thousands at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from flstream.model.dtypes import unit

Array = np.ndarray[Any, Any]

# Elements processed at a time. A block in float64 (1 MiB) stays in the L3 cache with the one that
# is added to it. A quarter of it stays in L2, and is slower nevertheless: summing takes 1.4 times
# as long, for each call of NumPy gives Python's lock away, and other threads of the walk take it.
# Folding two updates of 1 GiB took 0.85 of the time. Twice as many are no faster.
BLOCK = 131_072
# Elements of a block where a step makes many temporary arrays: six of these take 192 KiB.
SMALL_BLOCK = 4096


def block_room(codes: Iterable[str], step: int) -> Array:
    """Allocate float64 memory for any block of a ``step``'s elements of these types."""
    return np.empty(min(BLOCK, step // min(map(unit, codes), default=1)))


def blocks(length: int, size: int = BLOCK) -> Iterator[slice]:
    """Cut ``length`` elements into blocks of ``size``; the last may be shorter."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))
