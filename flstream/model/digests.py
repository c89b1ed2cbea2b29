"""Digests of a model: of all of it, and of each chunk that is sent."""

from __future__ import annotations

import xxhash

from flstream.model.body import Scratch, Source
from flstream.model.layout import Layout

# How much is read at a time where all of a body is.
_READ_BYTES = 1 << 20
# Chunks whose digests are kept: those of 16 GiB in chunks of 2 MiB, in 2 MiB.
_MOST_CHUNKS = 8192


class BodyDigest:
    """xxh3-128 of a layout and of its bytes in order: the digest of a model.

    It does not depend on the header's metadata nor on how the bytes were cut into ranges.
    """

    def __init__(self, layout: Layout) -> None:
        self._hash = xxhash.xxh3_128(layout.fingerprint.encode())

    def update(self, views: list[memoryview]) -> None:
        """Take the next bytes of the body."""
        for view in views:
            self._hash.update(view)

    def hexdigest(self) -> str:
        """32 hexadecimal digits."""
        return self._hash.hexdigest()


def body_digest(source: Source) -> str:
    """The digest of a source, read in ranges of 1 MiB: see :class:`BodyDigest`."""
    digest, scratch = BodyDigest(source.layout), Scratch()
    for start, stop in source.layout.ranges(_READ_BYTES):
        digest.update(list(source.views(start, stop, scratch)))
    return digest.hexdigest()


class ChunkDigests:
    """The xxh3-64 of chunks of a body, for whoever sends it next, as long as there is room.

    Where one was taken while the file was written, a receiver who finds that the bytes match it has
    also found that the file still gives what was written.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], int] = {}

    def get(self, start: int, stop: int) -> int | None:
        """That of the bytes ``[start, stop)``, if it is known."""
        return self._known.get((start, stop))

    def note(self, start: int, stop: int, digest: int) -> None:
        """Keep one, as long as there is room."""
        if len(self._known) < _MOST_CHUNKS or (start, stop) in self._known:
            self._known[start, stop] = digest

    def __len__(self) -> int:
        return len(self._known)


class ChunkDigester:
    """Takes the digests of a body's chunks while it is written from front to back.

    Args:
        nbytes: of the body.
        chunk_size: bytes of a chunk; the last one may be shorter.

    Attributes:
        digests: of the chunks that are whole; none where there are more than there is room for.
    """

    def __init__(self, nbytes: int, chunk_size: int) -> None:
        self.digests = ChunkDigests()
        self._is_idle = nbytes > chunk_size * _MOST_CHUNKS
        self._nbytes, self._chunk_size = nbytes, chunk_size
        self._hash = xxhash.xxh3_64()
        self._reached = 0

    def take(self, start: int, view: memoryview) -> None:
        """Take the bytes from ``start`` on, which follow the last ones; 0 begins again.

        Raises:
            ValueError: they do not follow.
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
