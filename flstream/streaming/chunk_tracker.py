"""The state of each chunk of a download: arrived, requested, or damaged."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass
class ActiveRequest:
    """A request that the sender is answering, from front to back.

    Attributes:
        size: Bytes that it covers.
        next: Offset in bytes of its next frame in the body.
        stop: Offset in bytes of its end in the body.
        urgent: Whether it is for a chunk that came damaged, which is sent before others.
    """

    size: int
    next: int
    stop: int
    urgent: bool


class ChunkTracker:
    """Tracks the chunks of one download.

    A chunk may be in blocks, some of which are here before it is fetched. The rest of it is then
    fetched in frames that are parts of the chunk.

    Args:
        nbytes: Length of the body in bytes.
        unit: Length of a chunk in bytes; the last one may be shorter.
        block: Length of a block in bytes, of which a chunk's is a multiple; None for that of a
            chunk.

    Attributes:
        under_way: Requests by their numbers, oldest first.
        damaged: Ranges of frames to be fetched again, oldest first.
    """

    def __init__(self, nbytes: int, unit: int, block: int | None = None) -> None:
        self._nbytes = nbytes
        self._unit = max(unit, 1)
        self._block = block or self._unit
        self._arrived = bytearray(-(-nbytes // self._block))
        self._left = len(self._arrived)
        self._attempts: dict[int, int] = {}
        self.under_way: dict[int, ActiveRequest] = {}
        self.damaged: deque[tuple[int, int]] = deque()

    @property
    def complete(self) -> bool:
        """Whether every chunk has arrived."""
        return self._left == 0

    def has_arrived(self, start: int, stop: int) -> bool:
        """Whether all of a range of whole blocks is here."""
        return self._arrived.find(0, start // self._block, -(-stop // self._block)) < 0

    def missing_from(self, start: int, most_bytes: int) -> tuple[int, int] | None:
        """Return the next run of blocks at or after ``start`` that have not arrived, or None.

        A run that begins within a chunk ends with it, so that frames never reach from one chunk
        into the next.

        Args:
            start: Offset in bytes of the beginning of a block, or of the end of the body.
            most_bytes: Most bytes of the run.
        """
        first = self._arrived.find(0, -(-start // self._block))
        if first < 0:
            return None
        begin = first * self._block
        if begin % self._unit:
            most_bytes = min(most_bytes, self._unit - begin % self._unit)
        most = first + max(most_bytes // self._block, 1)
        found = self._arrived.find(1, first, most)
        last = found if found >= 0 else most
        return begin, min(last * self._block, self._nbytes)

    def request(self, number: int, start: int, stop: int, *, urgent: bool) -> None:
        """Record a request that is being sent."""
        self.under_way[number] = ActiveRequest(stop - start, start, stop, urgent)

    def next_stop(self, number: int) -> int:
        """Return the offset in bytes of the end of a request's next frame."""
        request = self.under_way[number]
        return min(request.next + self._unit, request.stop)

    def take(self, number: int, start: int, stop: int) -> bool:
        """Record that a frame came; return False if it is not the next one of its request."""
        request = self.under_way[number]
        if start != request.next or start >= request.stop or stop != self.next_stop(number):
            return False
        request.next = stop
        if stop == request.stop:
            del self.under_way[number]
        return True

    def arrive(self, start: int, stop: int) -> None:
        """Record that a range of whole blocks is here and sound."""
        first, last = start // self._block, -(-stop // self._block)
        self._left -= self._arrived.count(0, first, last)
        self._arrived[first:last] = b"\1" * (last - first)

    def damage(self, start: int, stop: int) -> int:
        """Record that a frame came damaged, and return how often one from ``start`` on has."""
        self.damaged.append((start, stop))
        self._attempts[start] = self._attempts.get(start, 0) + 1
        return self._attempts[start]

    def restart(self) -> None:
        """Forget all requests: nothing more will come of them."""
        self.under_way.clear()
        self.damaged.clear()
