"""Not sending what the receiver has: the blocks of a body that are at hand, by their digests.

A receiver often has most of what it is about to receive: the model that it evaluated and is now to
train, the layers that nobody has changed, the half of a file that came before a crash. It has the
digests of all blocks sent with the opening, and fetches the blocks that differ.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable

from flstream.errors import ProtocolError
from flstream.model.source import Scratch, Source, views_of
from flstream.streaming.wire import digest_of, merged

_BLOCK_BYTES = 64 << 10
# Most digests of a body: those of 16 GiB in blocks of 64 KiB, in 2 MiB.
_MOST_BLOCKS = 1 << 18
# Seconds for which one thread takes digests before it looks at what its receiver says.
_TURN_SECONDS = 0.2


def block_size(nbytes: int) -> int:
    """Return the length in bytes of the blocks in which a body is compared with another.

    It is 64 KiB, or so much more that the digests of all blocks take 2 MiB. Adapters that are
    spread over a model's matrices change few of them: with 1% of its bytes trained, 1.2% of blocks
    of 64 KiB, where they would change 8.6% of those of 2 MiB.

    Args:
        nbytes: Length of the body in bytes.
    """
    size = _BLOCK_BYTES
    while size * _MOST_BLOCKS < nbytes:
        size *= 2
    return size


class BlockDigests:
    """The digests of all blocks of a body, taken once, by all threads that need them.

    Args:
        nbytes: Length of the body in bytes.

    Attributes:
        block: Length of a block in bytes; the last one may be shorter.
    """

    def __init__(self, nbytes: int) -> None:
        self.block = block_size(nbytes)
        self._nbytes = nbytes
        self._found = array("Q")
        self._taking = threading.Lock()

    def take(self, digest_of: Callable[[int, int], int], meanwhile: Callable[[], None]) -> bytes:
        """Return the xxh3-64 of each block, eight bytes each, little-endian.

        Args:
            digest_of: Returns the digest of a range.
            meanwhile: Called now and then, as long as this takes.

        Raises:
            FlstreamError: It cannot be read, or ``meanwhile`` has raised.
        """
        while len(self._found) * self.block < self._nbytes:
            with self._taking:
                until = time.monotonic() + _TURN_SECONDS
                while time.monotonic() < until:
                    start = len(self._found) * self.block
                    if start >= self._nbytes:
                        break
                    stop = min(start + self.block, self._nbytes)
                    self._found.append(digest_of(start, stop))
            meanwhile()
        return self._found.tobytes()


def same_blocks(source: Source, block: int, digests: bytes, peer: str) -> list[tuple[int, int]]:
    """Return the ranges of a body that a source at hand has, too, from front to back.

    Args:
        source: A body of the same layout.
        block: Length of a block in bytes.
        digests: Digests of the blocks at the peer.
        peer: Name of the peer, for messages.

    Raises:
        ProtocolError: There are not as many digests as blocks.
        FlstreamError: The source cannot be read.
    """
    nbytes, scratch = source.layout.nbytes, Scratch()
    if len(digests) != -(-nbytes // block) * 8:
        raise ProtocolError(f"{peer} sent {len(digests)} bytes of digests for {nbytes} of a body")
    theirs = array("Q", digests)
    pieces = ((start, min(start + block, nbytes)) for start in range(0, nbytes, block))
    return merged(
        (start, stop)
        for (start, stop), digest in zip(pieces, theirs, strict=True)
        if digest_of(views_of(source, start, stop, scratch)) == digest
    )
