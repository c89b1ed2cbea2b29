"""Digests of a model: of its whole body, and of each chunk that is sent."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable
from itertools import repeat

import xxhash

from flstream.model.layout import Layout
from flstream.model.source import Scratch, Source, views_of

# Bytes read at a time where a whole body is read.
_READ_BYTES = 1 << 20
# Most digests kept of chunks of one length: those of 16 GiB in chunks of 64 KiB, in 2 MiB.
_MOST_CHUNKS = 1 << 18
# Most lengths of chunks, and most chunks that are at no multiple of their length.
_MOST_LENGTHS = 4
_MOST_ODD = 1024

BLOCK_BYTES = 64 << 10
"""Length in bytes of the blocks that a receiver compares with what it has.

Adapters that are spread over a model's matrices change few of them: with 1% of its bytes trained,
1.2% of blocks of this length, where they would change 8.6% of those of 2 MiB.
"""


class BodyDigest:
    """Digest of a model: xxh3-128 of its layout's fingerprint and of its bytes in order.

    It depends neither on a header's metadata nor on how the bytes are cut into ranges.

    Args:
        layout: Layout of the model.
    """

    def __init__(self, layout: Layout) -> None:
        self._hash = xxhash.xxh3_128(layout.fingerprint.encode())

    def update(self, views: Iterable[memoryview]) -> None:
        """Add the next bytes of the body."""
        for view in views:
            self._hash.update(view)

    def hexdigest(self) -> str:
        """Return the digest as 32 hexadecimal digits."""
        return self._hash.hexdigest()


def body_digest(source: Source) -> str:
    """Read a source in ranges of 1 MiB, and return its digest: see :class:`BodyDigest`."""
    digest, scratch = BodyDigest(source.layout), Scratch()
    for start, stop in source.layout.ranges(_READ_BYTES):
        digest.update(views_of(source, start, stop, scratch))
    return digest.hexdigest()


def block_size(nbytes: int) -> int:
    """Return the length in bytes of the blocks in which a body is compared with another.

    It is :data:`BLOCK_BYTES`, or so much more that the digests of all blocks take 2 MiB.

    Args:
        nbytes: Length of the body in bytes.
    """
    size = BLOCK_BYTES
    while size * _MOST_CHUNKS < nbytes:
        size *= 2
    return size


class ChunkDigests:
    """Known xxh3-64 digests of a body's chunks, for sending or comparing the chunks again.

    There is room for 8 bytes for each chunk of a few lengths, 2 MiB for each length. A digest taken
    while the file was written also lets a receiver detect that the file no longer has the bytes
    that were written. Threads may share it.

    Attributes:
        adding: Held by whoever takes a digest that is not known, so that nobody else does.
    """

    def __init__(self) -> None:
        # By length, those of the chunks at multiples of it; 0 where none is known. A digest that is
        # 0 is taken anew each time.
        self._by_length: dict[int, array[int]] = {}
        self._odd: dict[tuple[int, int], int] = {}
        self.adding = threading.Lock()

    def get(self, start: int, stop: int) -> int | None:
        """Return the digest of the bytes ``[start, stop)``, or None if it is not known."""
        length = stop - start
        known = self._by_length.get(length)
        if known is None or start % length or start // length >= len(known):
            return self._odd.get((start, stop))
        return known[start // length] or None

    def note(self, start: int, stop: int, digest: int) -> None:
        """Keep the digest of the bytes ``[start, stop)``, as long as there is room."""
        length = stop - start
        place, rest = divmod(start, length)
        has_room = length in self._by_length or len(self._by_length) < _MOST_LENGTHS
        if not rest and place < _MOST_CHUNKS and has_room:
            known = self._by_length.setdefault(length, array("Q"))
            if place >= len(known):
                known.extend(repeat(0, place + 1 - len(known)))
            known[place] = digest
        elif len(self._odd) < _MOST_ODD or (start, stop) in self._odd:
            self._odd[start, stop] = digest

    def __len__(self) -> int:
        return len(self._odd) + sum(map(_count, self._by_length.values()))


class ChunkDigester:
    """Digests the chunks of a body while it is written from front to back.

    Args:
        nbytes: Length of the body in bytes.
        chunk_size: Length of a chunk in bytes; the last one may be shorter.

    Attributes:
        digests: Digests of the chunks that are complete. It stays empty if the body has more chunks
        than there is room for.
    """

    def __init__(self, nbytes: int, chunk_size: int) -> None:
        self.digests = ChunkDigests()
        self._is_idle = nbytes > chunk_size * _MOST_CHUNKS
        self._nbytes, self._chunk_size = nbytes, chunk_size
        self._hash = xxhash.xxh3_64()
        self._reached = 0

    def take(self, start: int, view: memoryview) -> None:
        """Add the bytes from ``start`` on, which follow those added last.

        A ``start`` of 0 begins the body again.

        Raises:
            ValueError: The bytes do not follow those added last.
        """
        if self._is_idle:
            return
        if start == 0:
            self._hash.reset()
            self._reached = 0
        if start != self._reached:
            raise ValueError(f"bytes from {start} on do not follow those before {self._reached}")
        while len(view):
            first = self._reached // self._chunk_size * self._chunk_size
            last = min(first + self._chunk_size, self._nbytes)
            piece = view[: last - self._reached]
            self._hash.update(piece)
            self._reached += len(piece)
            view = view[len(piece) :]
            if self._reached == last:
                self.digests.note(first, last, self._hash.intdigest())
                self._hash.reset()


def _count(digests: array[int]) -> int:
    return len(digests) - digests.count(0)


def chunk_digest(source: Source, start: int, stop: int, scratch: Scratch) -> int:
    """Return the xxh3-64 of a source's bytes ``[start, stop)``, which a file's source remembers.

    Args:
        source: The source.
        start: Offset in bytes of the first byte.
        stop: Offset in bytes after the last byte.
        scratch: Buffer for reading.

    Raises:
        FlstreamError: The source cannot be read.
    """
    extent = getattr(source, "extent", None)
    if extent is None:
        return _digest(source, start, stop, scratch)
    known: ChunkDigests = extent(start, stop).digests
    digest = known.get(start, stop)
    if digest is None:
        with known.adding:
            digest = known.get(start, stop)
            if digest is None:
                digest = _digest(source, start, stop, scratch)
                known.note(start, stop, digest)
    return digest


def _digest(source: Source, start: int, stop: int, scratch: Scratch) -> int:
    state = xxhash.xxh3_64()
    for view in views_of(source, start, stop, scratch):
        state.update(view)
    return state.intdigest()
