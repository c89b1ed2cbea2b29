"""Highest memory of processes in each round, from ``memory.jsonl`` as it grows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from flstream.telemetry.event_log import WholeLines
from flstream.telemetry.memory import Sample

_decoder = msgspec.json.Decoder(Sample)


class RoundPeaks(NamedTuple):
    """Memory in a round.

    Attributes:
        round: Number of the round.
        time: When it ended, in seconds since the epoch.
        rss: Highest resident bytes of each process.
        total: Highest sum of all processes in bytes, shared pages once; 0 if it is not known.
    """

    round: int
    time: float
    rss: Mapping[str, int]
    total: int


class MemoryPeaks:
    """Reads samples up to the ends of rounds.

    Args:
        path: Path of ``memory.jsonl``. It need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._lines = WholeLines(path)
        # Ends of rounds whose samples are not all read yet.
        self._ends: deque[tuple[int | None, float]] = deque()
        self._rss: dict[str, int] = {}
        # Of each node, which has ticks of its own: the highest sum of a tick, and the last tick.
        self._totals: dict[str | None, int] = {}
        self._ticks: dict[str | None, dict[str, int]] = {}
        # Resident bytes that a process shares with others, as of its last reading of PSS.
        self._shared: dict[str, int] = {}

    def end_round(self, number: int | None, time: float) -> None:
        """Take the end of a round, or with None of samples that are of no round."""
        self._ends.append((number, time))

    def take(self, *, is_over: bool = False) -> Iterator[RoundPeaks]:
        """Yield the peaks of rounds that have a later sample, or of all once the run is over."""
        if not self._ends:
            return  # the samples may wait
        for sample in self._new_samples():
            while self._ends and sample.time > self._ends[0][1]:
                yield from self._end()
            self._add(sample)
        while is_over and self._ends:
            yield from self._end()

    def _new_samples(self) -> Iterator[Sample]:
        with suppress(FileNotFoundError):
            for line in self._lines:
                # A line that a crash has torn is followed by sound ones after a resume.
                with suppress(ValueError, RecursionError):
                    yield _decoder.decode(line)

    def _end(self) -> Iterator[RoundPeaks]:
        number, time = self._ends.popleft()
        for node in self._ticks:
            self._add_tick(node)
        if number is not None and self._rss:
            yield RoundPeaks(number, time, self._rss, sum(self._totals.values()))
        self._rss, self._totals = {}, {}

    def _add(self, sample: Sample) -> None:
        name = sample.process
        self._rss[name] = max(sample.rss, self._rss.get(name, 0))
        own = sample.uss if sample.pss is None else sample.pss
        if own is not None:
            self._shared[name] = sample.rss - own
        tick = self._ticks.setdefault(sample.node, {})
        if name in tick:
            self._add_tick(sample.node)
        tick[name] = sample.rss

    def _add_tick(self, node: str | None) -> None:
        """Add up the samples of one tick of a node, if it is known of all what they share."""
        tick = self._ticks[node]
        if tick.keys() <= self._shared.keys():
            sizes = (max(rss - self._shared[name], 0) for name, rss in tick.items())
            self._totals[node] = max(self._totals.get(node, 0), sum(sizes))
        tick.clear()
