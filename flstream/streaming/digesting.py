"""Digests that are taken piece by piece, so that others have their turn meanwhile."""

from __future__ import annotations

import xxhash

from flstream.model.digests import ChunkDigests
from flstream.model.source import Scratch, Source, views_of
from flstream.streaming.wire import Digest

# Bytes that are digested at a time, so that they stay in the processor's cache.
_PIECE_BYTES = 256 << 10
# Bytes as which a chunk counts that is digested, however short: to digest it takes as long.
_CHUNK_COST = 16 << 10
# Bytes as which one counts whose digest is known.
_KNOWN_COST = 1 << 10


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
            stop = min(self._next + _PIECE_BYTES, end)
            for view in views_of(self._source, self._next, stop, scratch):
                self._hash.update(view)
            self._next = stop
        return end - begin


class Digesting:
    """A request for digests that is being answered, some in each turn.

    What is known of a file's chunks, such as since they were written, is not read again.

    Args:
        request: The request.
        source: The ref's source.

    Attributes:
        request: As given.
        packed: The digests so far, eight bytes each.
    """

    def __init__(self, request: Digest, source: Source) -> None:
        self.request = request
        self.packed = bytearray()
        self._source = source
        size = request.chunk_size
        numbers = request.sample or range(-(-(request.stop - request.start) // size))
        self._starts = iter([request.start + number * size for number in numbers])
        self._next = next(self._starts, None)
        self._chunk: RangeDigest | None = None

    def go_on(self, most: int, scratch: Scratch) -> bool:
        """Digest at most so many bytes; return whether all of them are done.

        Raises:
            FlstreamError: The source cannot be read.
        """
        request, known = self.request, self._known()
        while (start := self._next) is not None and most > 0:
            stop = min(start + request.chunk_size, request.stop)
            digest = None if known is None else known.get(start, stop)
            if digest is None:
                chunk = self._chunk or RangeDigest(self._source, start, stop)
                most -= max(chunk.go_on(most, scratch), _CHUNK_COST)
                self._chunk = None if chunk.is_done else chunk
                if not chunk.is_done:
                    continue
                digest = chunk.value
                if known is not None:
                    known.note(start, stop, digest)
            else:
                most -= _KNOWN_COST
                self._chunk = None  # another receiver's request has been faster with this one
            self.packed += digest.to_bytes(8, "little")
            self._next = next(self._starts, None)
        return self._next is None

    def _known(self) -> ChunkDigests | None:
        """Return the digests that are known of a file; raise if it became too short."""
        extent = getattr(self._source, "extent", None)
        return None if extent is None else extent(self.request.start, self.request.stop).digests
