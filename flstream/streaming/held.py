"""Not sending what the receiver has: the blocks of a body that are at hand, found by their digests.

A receiver often has most of what it is about to receive: the model that it evaluated and is now to
train, or the layers that nobody has changed. It asks for the digests of a few blocks, and for those
of all of them where these few were worth it; then it fetches the blocks that differ.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator, Sequence
from math import gcd

from flstream.errors import ProtocolError
from flstream.model.copy import scatter
from flstream.model.digests import block_size, body_digest, chunk_digest
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource
from flstream.model.source import Scratch, Source, views_of
from flstream.streaming import wire
from flstream.streaming.exchange import Exchange
from flstream.streaming.frames import expect_unchanged
from flstream.streaming.opening import MOST_EAGER_BYTES
from flstream.streaming.speeds import Speeds

# Blocks that are looked at first: one of so many, but not fewer or more than these. They are
# digested in vain where nothing is here.
_SAMPLED = 64
_LEAST_SAMPLE, _MOST_SAMPLE = 8, 64
# Blocks below this are not worth their digests.
_LEAST_BLOCK = 4 << 10


class KnownBody:
    """A short body that was received before, kept whole with its digest.

    Args:
        layout: Its layout.
        data: Its bytes, at most 64 KiB.

    Attributes:
        source: The body.
        digest: Its digest.
    """

    def __init__(self, layout: Layout, data: bytes) -> None:
        self.source = BufferSource(layout, memoryview(data))
        self.digest = body_digest(self.source)

    @classmethod
    def of(cls, source: Source) -> KnownBody | None:
        """Keep a copy of a body; None if it is too long to be kept, or empty."""
        nbytes = source.layout.nbytes
        if not 0 < nbytes <= MOST_EAGER_BYTES:
            return None
        return cls(source.layout, b"".join(views_of(source, 0, nbytes, Scratch())))


class HeldBlocks:
    """Blocks of a body that is being received which a source at hand has as well.

    Args:
        source: The source, of the body's layout.
        size: Length of a block in bytes; the last one may be shorter.

    Attributes:
        source: As given.
        nbytes: Bytes of the blocks that it has.
    """

    def __init__(self, source: Source, size: int) -> None:
        self.source = source
        self.nbytes = 0
        self._size = size
        self._has = bytearray(-(-source.layout.nbytes // size))
        self._scratch = Scratch()

    def add(self, start: int, stop: int) -> None:
        """Record that the source has a block."""
        self._has[start // self._size] = 1
        self.nbytes += stop - start

    def runs(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[start, stop)`` that the source has, from front to back."""
        place, end = start // self._size, -(-stop // self._size)
        while (place := self._has.find(1, place, end)) >= 0:
            found = self._has.find(0, place, end)
            last = found if found >= 0 else end
            yield max(place * self._size, start), min(last * self._size, stop)
            place = last

    def copy(self, start: int, stop: int, target: Sequence[memoryview]) -> None:
        """Copy the bytes ``[start, stop)``, which the source has.

        Raises:
            FlstreamError: It cannot be read, or has changed since it was compared.
        """
        scatter(views_of(self.source, start, stop, self._scratch), target)
        expect_unchanged(self.source)


class BlockComparison:
    """Compares a body that a peer offers with a source at hand, block by block.

    Args:
        exchange: Messages of the download.
        layout: Layout of the body.
        source: The source, of the same layout.
        speeds: Estimates of the channel, which are consulted and improved.
    """

    def __init__(self, exchange: Exchange, layout: Layout, source: Source, speeds: Speeds) -> None:
        self._exchange = exchange
        self._nbytes = layout.nbytes
        self._speeds = speeds
        self._size = block_size(layout.nbytes)
        self._blocks = HeldBlocks(source, self._size)
        self._scratch = Scratch()

    def unit(self, frame: int) -> int | None:
        """Return the length of what chunks are fetched in, if these are not fetched whole.

        Args:
            frame: Length of a chunk in bytes.

        Returns:
            A divisor of a chunk's and a block's length; None if there is none of any use.
        """
        unit = gcd(frame, self._size)
        return unit if unit >= _LEAST_BLOCK and self._size <= wire.MAX_DIGEST_BYTES else None

    def blocks(self) -> HeldBlocks | None:
        """Return the blocks that the source has, or None if too few are expected to be.

        Raises:
            StreamingError: The sender refused, fell silent, or is gone.
            FlstreamError: The source cannot be read.
        """
        if not self._speeds.is_due(self._nbytes):
            return None
        began, sample = time.monotonic(), self._sample()
        if sample:
            share = sum(self._same(0, self._nbytes, sample)) / len(sample)
            self._speeds.looked(share, time.monotonic() - began)
            if not self._speeds.worth(share):
                return None
            began = time.monotonic()
        step = min(wire.MAX_DIGEST_BYTES // self._size, wire.MAX_DIGESTS) * self._size
        for start in range(0, self._nbytes, step):
            stop = min(start + step, self._nbytes)
            for index, is_same in enumerate(self._same(start, stop)):
                if is_same:
                    first = start + index * self._size
                    self._blocks.add(first, min(first + self._size, self._nbytes))
        seconds = time.monotonic() - began
        self._speeds.digested(self._nbytes, seconds)
        if not sample:
            self._speeds.looked(self._blocks.nbytes / max(self._nbytes, 1), seconds)
        return self._blocks

    def _sample(self) -> list[int]:
        """Return numbers of blocks to look at first; none where there are few at all.

        They are drawn, since adapters that are spread over a model come at regular places.
        """
        count = -(-self._nbytes // self._size)
        most = min(_MOST_SAMPLE, wire.MAX_DIGEST_BYTES // self._size)
        size = min(max(count // _SAMPLED, _LEAST_SAMPLE), most)
        return sorted(random.Random(count).sample(range(count), size)) if count > 2 * size else []

    def _same(self, start: int, stop: int, sample: Sequence[int] = ()) -> list[bool]:
        """Return of each block of a range, or of each of a sample, whether the source has it."""
        exchange, source, size = self._exchange, self._blocks.source, self._size
        number = exchange.next_number()
        asked = wire.Digest(exchange.token, number, start, stop, size, list(sample))
        numbers = sample or range(-(-(stop - start) // size))
        here: list[int] = []

        def digest_here() -> None:
            for first in (start + number * size for number in numbers):
                last = min(first + size, stop)
                here.append(chunk_digest(source, first, last, self._scratch))

        # Both sides digest at the same time.
        digests = exchange.ask(asked, wire.Digested, meanwhile=digest_here).digests
        exchange.renew()
        if len(digests) != 8 * len(here):
            raise ProtocolError(
                f"{exchange.peer} sent {len(digests)} bytes of digests for {len(here)} blocks"
            )
        there = struct.iter_unpack("<Q", digests)
        return [own == other for own, (other,) in zip(here, there, strict=True)]
