"""The state of each chunk of a download: arrived, requested, or lost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ActiveRequest:
    """A request that the sender is answering.

    Attributes:
        next: Offset in bytes of its next frame in the body.
        stop: Offset in bytes of its end in the body.
        urgent: Whether it is for chunks that were lost, which are sent before others.
    """

    next: int
    stop: int
    urgent: bool


class ChunkTracker:
    """Tracks the chunks of one download.

    A sender answers urgent requests before others, and each kind in the order of its requests, from
    front to back. So a frame shows that the chunks that were due before it are lost.

    Args:
        nbytes: Length of the body in bytes.
        unit: Length of a chunk in bytes; the last one may be shorter.

    Attributes:
        under_way: Requests by their numbers, oldest first.
        lost: Indices of chunks that were requested and will not come.
    """

    def __init__(self, nbytes: int, unit: int) -> None:
        self._nbytes = nbytes
        self._unit = max(unit, 1)
        self._arrived = bytearray(-(-nbytes // self._unit))
        self._left = len(self._arrived)
        self._attempts: dict[int, int] = {}
        self.under_way: dict[int, ActiveRequest] = {}
        self.lost: set[int] = set()

    @property
    def complete(self) -> bool:
        """Whether every chunk has arrived."""
        return self._left == 0

    def is_due(self, number: int, start: int, stop: int) -> bool:
        """Return whether a frame of these bytes fits a request; true for requests not under way."""
        request = self.under_way.get(number)
        return request is None or (stop <= request.stop and self._is_chunk(start, stop))

    def is_wanted(self, start: int, stop: int) -> bool:
        """Return whether these bytes are a chunk that has not arrived."""
        return self._is_chunk(start, stop) and not self._arrived[start // self._unit]

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
        self.lost.difference_update(self._indices(start, stop))

    def frame(self, number: int, start: int, stop: int) -> None:
        """Record that a frame came, whole or not, and give up chunks that were due before it."""
        answered = self.under_way.get(number)
        if answered is None:
            return
        for older, request in list(self.under_way.items()):
            if older == number:
                break
            if request.urgent == answered.urgent:
                self.give_up(older)
        self._lose(answered.next, min(start, answered.stop))
        answered.next = max(answered.next, stop)
        if answered.next >= answered.stop:
            del self.under_way[number]

    def arrive(self, start: int) -> None:
        """Record that a chunk has arrived sound."""
        index = start // self._unit
        self._arrived[index] = 1
        self._left -= 1
        self.lost.discard(index)

    def damage(self, start: int) -> None:
        """Record that a chunk came damaged."""
        self.lost.add(start // self._unit)

    def give_up(self, number: int) -> None:
        """Record that nothing more will come of a request."""
        request = self.under_way.pop(number)
        self._lose(request.next, request.stop)

    def repairs(self, most_bytes: int, most_ranges: int) -> list[tuple[int, int, int]]:
        """Choose what to fetch again, in order.

        Returns:
            At most ``most_ranges`` ranges as (start, stop, attempt), where attempt counts from 1
            for their
            first repair. A range has at most ``most_bytes``, or is one chunk, and its chunks have
            failed
            equally often.
        """
        ranges: list[tuple[int, int, int]] = []
        for index in sorted(self.lost):
            attempt = self._attempts.get(index, 0) + 1
            start = index * self._unit
            stop = min(start + self._unit, self._nbytes)
            if ranges:
                first, last, attempts = ranges[-1]
                if last == start and attempts == attempt and stop - first <= most_bytes:
                    ranges[-1] = (first, stop, attempt)
                    self._attempts[index] = attempt
                    continue
            if len(ranges) >= most_ranges:
                break
            ranges.append((start, stop, attempt))
            self._attempts[index] = attempt
        return ranges

    def _is_chunk(self, start: int, stop: int) -> bool:
        index, rest = divmod(start, self._unit)
        if rest or not 0 <= index < len(self._arrived):
            return False
        return stop == min(start + self._unit, self._nbytes)

    def _lose(self, start: int, stop: int) -> None:
        self.lost.update(index for index in self._indices(start, stop) if not self._arrived[index])

    def _indices(self, start: int, stop: int) -> range:
        return range(start // self._unit, -(-min(stop, self._nbytes) // self._unit))
