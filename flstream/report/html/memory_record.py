"""Memory over time, from samples of any number, in the memory of a few thousand of them."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

# As many as no chart has columns for. With more samples, bins get longer.
_MOST_BINS = 1536
_FIRST_STEP = 0.05
_BLOCK_BYTES = 1 << 20


class _Sample(msgspec.Struct):
    """What a chart needs of a line of ``memory.jsonl``."""

    time: float
    process: str
    rss: int


_decoder = msgspec.json.Decoder(_Sample)
_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)


class Sitting(NamedTuple):
    """A stretch in which the run was going on: from its begin or a resume to its end.

    Attributes:
        begin: in seconds since the epoch.
        end: the same.
        start: seconds that the run had been going on before.
    """

    begin: float
    end: float
    start: float


class Clock:
    """Time for which a run has been going on: hours between its sittings do not count.

    Args:
        sittings: begin and end of each as far as its events tell, in seconds since the epoch.
    """

    def __init__(self, sittings: Sequence[tuple[float, float]]) -> None:
        self._known = list(sittings)
        self.sittings: list[Sitting] = []

    def see(self, time: float) -> float:
        """Take the time of a sample, in the order of the file; return the running seconds."""
        index = max(bisect_right(self._known, time, key=lambda known: known[0]) - 1, 0)
        while len(self.sittings) <= index:
            self._open(time if index == len(self.sittings) else None)
        last = self.sittings[-1]
        if time > last.end:
            self.sittings[-1] = last = last._replace(end=time)
        return last.start + max(time - last.begin, 0.0)

    def close(self) -> None:
        """Take what events tell of sittings that have no sample."""
        while len(self.sittings) < len(self._known):
            self._open(None)

    def running(self, time: float) -> float:
        """Running seconds at a time since the epoch."""
        index = max(bisect_right(self.sittings, time, key=lambda sitting: sitting.begin) - 1, 0)
        if not self.sittings:
            return 0.0
        sitting = self.sittings[index]
        return sitting.start + (min(max(time, sitting.begin), sitting.end) - sitting.begin)

    @property
    def seconds(self) -> float:
        """For which the run has been going on, all in all."""
        if not self.sittings:
            return 0.0
        last = self.sittings[-1]
        return last.start + (last.end - last.begin)

    def _open(self, time: float | None) -> None:
        number = len(self.sittings)
        begin, end = self._known[number] if number < len(self._known) else (time, time)
        assert begin is not None
        assert end is not None
        # The sampler is there before the first process can say anything.
        begin = begin if time is None else min(begin, time)
        self.sittings.append(Sitting(begin, max(begin, end), self.seconds))


class MemoryRecord(NamedTuple):
    """RSS of every process over the time for which the run was going on.

    Attributes:
        step: seconds that a value stands for.
        rss: by process, the highest sample of each step in bytes; 0 where there was none. Those of
            a process that ended early are fewer.
        damaged: lines that could not be read.
    """

    step: float
    rss: Mapping[str, Sequence[int]]
    damaged: int

    def peak(self, process: str) -> int:
        """The highest sample of a process in bytes; 0 without one."""
        return max(self.rss.get(process, ()), default=0)


def read_memory(path: Path, clock: Clock) -> MemoryRecord:
    """Read ``memory.jsonl``, in one pass and in memory that does not grow with it.

    What lies in one step is represented by its highest value, so that no peak is lost.

    Args:
        path: of the file. If it is not there, there are no samples.
        clock: told of every sample, and closed.

    Raises:
        OSError: it cannot be read.
    """
    bins = _Bins()
    damaged = 0
    for samples, bad in _blocks(path):
        damaged += bad
        for sample in samples:
            if math.isfinite(sample.time):
                bins.add(sample.process, clock.see(sample.time), sample.rss)
    clock.close()
    return MemoryRecord(bins.step, bins.highest, damaged)


class _Bins:
    def __init__(self) -> None:
        self.step = _FIRST_STEP
        self.highest: dict[str, array[int]] = {}

    def add(self, process: str, seconds: float, rss: int) -> None:
        while (index := int(seconds / self.step)) >= _MOST_BINS:
            self._double()
        values = self.highest.get(process)
        if values is None:
            values = self.highest[process] = array("q")
        if index >= len(values):
            values.extend([0] * (index + 1 - len(values)))
        if rss > values[index]:
            values[index] = min(rss, (1 << 63) - 1)

    def _double(self) -> None:
        self.step *= 2
        for process, values in self.highest.items():
            self.highest[process] = array("q", pairwise_highest(values))


def pairwise_highest(values: Sequence[int]) -> Iterator[int]:
    """The higher one of each two neighbours; an odd last one alone."""
    for index in range(0, len(values), 2):
        yield max(values[index : index + 2])


def _blocks(path: Path) -> Iterator[tuple[Iterable[_Sample], int]]:
    """Samples, a block of the file at a time, and how many of its lines are damaged."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        rest = b""
        while block := file.read(_BLOCK_BYTES):
            lines, _, rest = (rest + block).rpartition(b"\n")
            # A line without an end is no line of ours, and need not be kept whole.
            rest = rest[:_BLOCK_BYTES]
            try:
                yield _decoder.decode_lines(lines), 0
            except _UNREADABLE:
                yield _one_by_one(lines.split(b"\n"))
    # What follows the last line end was being written when the run was cut off.


def _one_by_one(lines: Sequence[bytes]) -> tuple[list[_Sample], int]:
    samples, damaged = [], 0
    for line in filter(None, lines):
        try:
            samples.append(_decoder.decode(line))
        except _UNREADABLE:
            damaged += 1
    return samples, damaged
