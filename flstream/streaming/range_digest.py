"""The digest of a range that is taken piece by piece, so that others have their turn meanwhile."""

from __future__ import annotations

import xxhash

from flstream.model.body import Scratch, Source

PIECE_BYTES = 256 << 10
"""Bytes that are digested at a time, so that they stay in the processor's cache."""


class RangeDigest:
    """The xxh3-64 of a range of a source.

    Args:
        source: The source.
        start: Offset in bytes of the first byte.
        stop: Offset in bytes after the last byte.
    """

    def __init__(self, source: Source, start: int, stop: int) -> None:
        self._source = source
        self._next, self._stop = start, stop
        self._hash = xxhash.xxh3_64()

    @property
    def is_done(self) -> bool:
        """Whether all of the range is in it."""
        return self._next == self._stop

    @property
    def value(self) -> int:
        """The digest, once it is done."""
        return self._hash.intdigest()

    def go_on(self, most: int, scratch: Scratch) -> int:
        """Digest at most so many bytes, and return their number.

        Raises:
            FlstreamError: The source cannot be read.
        """
        begin, end = self._next, min(self._next + most, self._stop)
        while self._next < end:
            stop = min(self._next + PIECE_BYTES, end)
            for view in self._source.views(self._next, stop, scratch):
                self._hash.update(view)
            self._next = stop
        return end - begin
