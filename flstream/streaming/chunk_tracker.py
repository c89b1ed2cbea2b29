"""The state of each chunk of a download: arrived, requested, or damaged."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass
class ActiveRequest:
    """A request that the sender is answering, from front to back.

    Attributes:
        next: Offset in bytes of its next frame in the body.
        stop: Offset in bytes of its end in the body.
        urgent: Whether it is for a chunk that came damaged, which is sent before others.
    """

    next: int
    stop: int
    urgent: bool


class ChunkTracker:
    """Tracks the chunks of one download.

    Args:
        nbytes: Length of the body in bytes.
        unit: Length of a chunk in bytes; the last one may be shorter.

    Attributes:
        under_way: Requests by their numbers, oldest first.
        damaged: Offsets of chunks to be fetched again, oldest first.
    """

    def __init__(self, nbytes: int, unit: int) -> None:
        self._nbytes = nbytes
        self._unit = max(unit, 1)
        self._arrived = bytearray(-(-nbytes // self._unit))
        self._left = len(self._arrived)
        self._attempts: dict[int, int] = {}
        self.under_way: dict[int, ActiveRequest] = {}
        self.damaged: deque[int] = deque()

    @property
    def complete(self) -> bool:
        """Whether every chunk has arrived."""
        return self._left == 0

    def stop_of(self, start: int) -> int:
        """Return the offset in bytes of the end of the chunk that begins at ``start``."""
        return min(start + self._unit, self._nbytes)

    def has_arrived(self, start: int) -> bool:
        """Whether the chunk that begins at ``start`` is here."""
        return bool(self._arrived[start // self._unit])

    def missing_from(self, start: int, most_bytes: int) -> tuple[int, int] | None:
        """Return the next run of chunks at or after ``start`` that have not arrived, or None.

        Args:
            start: Offset in bytes of the beginning of a chunk, or of the end of the body.
            most_bytes: Most bytes of the run.
        """
        first = self._arrived.find(0, -(-start // self._unit))
        if first < 0:
            return None
        most = first + max(most_bytes // self._unit, 1)
        found = self._arrived.find(1, first, most)
        last = found if found >= 0 else most
        return first * self._unit, min(last * self._unit, self._nbytes)

    def request(self, number: int, start: int, stop: int, *, urgent: bool) -> None:
        """Record a request that is being sent."""
        self.under_way[number] = ActiveRequest(start, stop, urgent)

    def take(self, number: int, start: int, stop: int) -> bool:
        """Record that a frame came; return False if it is not the next one of its request."""
        request = self.under_way[number]
        if start != request.next or start >= request.stop or stop != self.stop_of(start):
            return False
        request.next = stop
        if stop == request.stop:
            del self.under_way[number]
        return True

    def arrive(self, start: int) -> None:
        """Record that a chunk has arrived sound."""
        self._arrived[start // self._unit] = 1
        self._left -= 1

    def damage(self, start: int) -> int:
        """Record that a chunk came damaged, and return how often it has so far."""
        self.damaged.append(start)
        self._attempts[start] = self._attempts.get(start, 0) + 1
        return self._attempts[start]

    def restart(self) -> None:
        """Forget all requests: nothing more will come of them."""
        self.under_way.clear()
        self.damaged.clear()
