"""Digests of a model: of its whole body, and of each chunk that is sent."""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from flstream.model.body import Scratch, Source
from flstream.model.layout import Layout

# Bytes read at a time where a whole body is read.
_READ_BYTES = 1 << 20
# Most digests kept: those of 16 GiB in chunks of 2 MiB, which take 2 MiB of memory.
_MOST_CHUNKS = 8192


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
        digest.update(source.views(start, stop, scratch))
    return digest.hexdigest()


class ChunkDigests:
    """Known xxh3-64 digests of a body's chunks, for sending the chunks again; at most 8192.

    A digest taken while the file was written also lets a receiver detect that the file no longer
    has the bytes that were written.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], int] = {}

    def get(self, start: int, stop: int) -> int | None:
        """Return the digest of the bytes ``[start, stop)``, or None if it is not known."""
        return self._known.get((start, stop))

    def note(self, start: int, stop: int, digest: int) -> None:
        """Keep the digest of the bytes ``[start, stop)``, as long as there is room."""
        if len(self._known) < _MOST_CHUNKS or (start, stop) in self._known:
            self._known[start, stop] = digest

    def __len__(self) -> int:
        return len(self._known)


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
