"""Order statistics of more numbers than fit into memory, exact, in a few passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flstream.model.random_numbers import Floats

# Bits of a number that a pass finds: its histogram takes 512 KiB.
_DIGIT = 16
_BITS = 64
# Numbers that are sorted in memory: 2 MiB, twice for a moment.
_MOST_KEPT = 1 << 18

Keys = np.ndarray[Any, np.dtype[np.uint64]]
Blocks = Callable[[], Iterable[Floats]]
"""Function that begins a pass over the numbers, always the same, none below 0."""


@dataclass
class _Search:
    """Search for one number."""

    rank: int  # its place among those that begin with the prefix, from 0
    prefix: int = 0  # first bits that it is known to have
    bits: int = 0  # how many those are
    count: int = 0  # how many numbers begin with them
    members: list[Keys] = field(default_factory=list)  # those numbers, once they are few

    def narrow(self, counts: np.ndarray[Any, Any]) -> None:
        """Take the next digit, given how many numbers have each of its values."""
        upto = np.cumsum(counts)
        digit = int(np.searchsorted(upto, self.rank, side="right"))
        self.rank -= int(upto[digit] - counts[digit])
        self.prefix = self.prefix << _DIGIT | digit
        self.bits += _DIGIT
        self.count = int(counts[digit])

    def of(self, keys: Keys) -> Keys:
        """Return the keys that begin with the prefix."""
        if not self.bits:
            return keys
        matching: Keys = keys[keys >> np.uint64(_BITS - self.bits) == np.uint64(self.prefix)]
        return matching


def order_statistics(blocks: Blocks, count: int, ranks: Sequence[int]) -> list[float]:
    """Return the numbers at the places ``ranks`` of the ascending order, from 0.

    The bits of floats of at least 0 are in the order of the floats. So each pass finds the next 16
    bits of a number, until those that share the bits found are few enough to be sorted, or all bits
    are found. With a quarter of a million numbers or fewer that is one pass, with more as a rule
    two or three, and never more than four.
    """
    searches = [_Search(rank, count=count) for rank in ranks]
    while todo := [search for search in searches if search.bits < _BITS and not search.members]:
        # Searches for neighbours mostly share their bits, and so their counts.
        groups: dict[tuple[int, int], list[_Search]] = {}
        for search in todo:
            groups.setdefault((search.bits, search.prefix), []).append(search)
        totals = {
            place: np.zeros(1 << _DIGIT, np.int64)
            for place, group in groups.items()
            if group[0].count > _MOST_KEPT
        }
        for block in blocks():
            keys = np.abs(block).view(np.uint64)
            for place, group in groups.items():
                own = group[0].of(keys)
                if place not in totals:
                    group[0].members.append(own)
                elif len(own):
                    digits = own >> np.uint64(_BITS - _DIGIT - place[0]) & np.uint64(0xFFFF)
                    totals[place] += np.bincount(digits.astype(np.int64), minlength=1 << _DIGIT)
        for place, group in groups.items():
            for search in group:
                if place in totals:
                    search.narrow(totals[place])
                else:
                    search.members = group[0].members
    return [_number_of(search) for search in searches]


def _number_of(search: _Search) -> float:
    if search.bits == _BITS:
        key = np.uint64(search.prefix)
    else:
        keys = np.concatenate(search.members)
        keys.partition(search.rank)
        key = keys[search.rank]
    return float(key.view(np.float64))


def percentile_of(blocks: Blocks, count: int, percent: float) -> float:
    """Return a percentile with the same bits as ``numpy.percentile``."""
    place = (count - 1) * (percent / 100)
    below = int(place)
    low, high = order_statistics(blocks, count, [below, min(below + 1, count - 1)])
    part = place - below
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)
