"""Memory of a run's processes over its running time, from ``memory.jsonl``."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import numpy as np

from flstream.telemetry.event_log import WholeLines
from flstream.telemetry.memory import read_samples

HELPERS = ("launcher", "launcher/fork-server", "fork-server", "model-builder", "ray-driver")
"""Processes of a run that are neither its server nor do the work of sites."""

# More values than a chart has columns for. Of more samples the steps get longer.
_MOST_STEPS, _FIRST_STEP = 768, 0.05
# Maximum delay of a sample on a busy machine; a process without one for longer is gone.
_LATE_SECONDS = 2.0


@dataclass(frozen=True)
class MemoryCurves:
    """RSS of processes over the running time of a run."""

    step: float  # seconds that a value stands for
    rss: Mapping[str, Sequence[int]]  # highest of each step in bytes; 0 where there was no sample
    nodes: Mapping[str, str] = field(default_factory=dict)  # of processes on other machines
    damaged: int = 0  # lines that could not be read

    def peak(self, process: str) -> int:
        """Return the highest sample of a process in bytes; 0 without one."""
        return max(self.rss.get(process, ()), default=0)

    def resident(self, process: str) -> np.ndarray:
        """Return the RSS of a process at each step in bytes; NaN where it had ended."""
        rss = np.array(self.rss[process], float)
        steps = np.arange(len(rss))
        last = np.maximum.accumulate(np.where(rss > 0, steps, -1))
        is_known = (last >= 0) & ((steps - last) * self.step <= _LATE_SECONDS)
        return np.where(is_known, rss[last], math.nan)


class RunningClock:
    """Running time of a run, without the hours between its sittings."""

    def __init__(self, sittings: Sequence[tuple[float, float]]) -> None:
        self._begins = [begin for begin, _ in sittings]
        # Running seconds at which each sitting begins, and in all.
        self.starts = [0.0, *accumulate(end - begin for begin, end in sittings)]
        self.seconds = self.starts.pop() if sittings else 0.0

    def see(self, time: float) -> float:
        """Return the running seconds at a sample's time; the last may extend the run."""
        if not self._begins:
            self._begins.append(time)
        sitting = max(bisect_right(self._begins, time) - 1, 0)
        seconds = self.starts[sitting] + max(time - self._begins[sitting], 0.0)
        if sitting + 1 < len(self.starts):
            return min(seconds, self.starts[sitting + 1])
        self.seconds = max(self.seconds, seconds)
        return seconds


def read_memory(path: Path, clock: RunningClock) -> MemoryCurves:
    """Read samples in one pass; keep the highest of each step, so no peak is lost."""
    step, damaged = _FIRST_STEP, 0
    highest: dict[str, array[int]] = {}
    nodes: dict[str, str] = {}
    for sample in read_samples(WholeLines(path)):
        if sample is None:
            damaged += 1
            continue
        if not math.isfinite(sample.time):
            continue
        seconds = clock.see(sample.time)
        while (index := int(seconds / step)) >= _MOST_STEPS:
            step *= 2
            for name, values in highest.items():
                pairs = range(0, len(values), 2)
                highest[name] = array("q", (max(values[at : at + 2]) for at in pairs))
        values = highest.setdefault(sample.process, array("q"))
        values.extend([0] * (index + 1 - len(values)))
        values[index] = max(values[index], min(sample.rss, (1 << 63) - 1))
        if sample.node is not None:
            nodes[sample.process] = sample.node
    return MemoryCurves(step, highest, nodes, damaged)
