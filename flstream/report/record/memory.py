"""Memory over time, from samples of any number, in the memory of a few thousand of them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from flstream.report.record.clock import Clock

# As many as no chart has columns for. With more samples, bins get longer.
_MOST_BINS = 768
_FIRST_STEP = 0.05
_BLOCK_BYTES = 1 << 20


class _Sample(msgspec.Struct):
    """What a chart needs of a line of ``memory.jsonl``."""

    time: float
    process: str
    rss: int
    node: str | UnsetType = UNSET


_decoder = msgspec.json.Decoder(_Sample)
_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)


class MemoryRecord(NamedTuple):
    """RSS of every process over the time for which the run was going on.

    Attributes:
        step: seconds that a value stands for.
        rss: by process, the highest sample of each step in bytes; 0 where there was none. Those of
            a process that ended early are fewer.
        damaged: lines that could not be read.
        nodes: by process, the node that it was on last, of those that were not on the launcher's
            machine.
    """

    step: float
    rss: Mapping[str, Sequence[int]]
    damaged: int
    nodes: Mapping[str, str] = MappingProxyType({})

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
    damaged, nodes = 0, {}
    for samples, bad in _blocks(path):
        damaged += bad
        for sample in samples:
            if math.isfinite(sample.time):
                bins.add(sample.process, clock.see(sample.time), sample.rss)
                if isinstance(sample.node, str):
                    nodes[sample.process] = sample.node
    clock.close()
    return MemoryRecord(bins.step, bins.highest, damaged, nodes)


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
