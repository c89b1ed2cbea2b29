"""The largest numbers of a block, and the bytes of their places."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flstream.codecs.block_codec import BLOCK, BlockPlace
from flstream.codecs.floats import Numbers

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
