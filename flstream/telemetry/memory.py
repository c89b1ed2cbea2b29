"""The one sampler of memory, for every process of a run.

RSS counts shared and file-backed pages; USS counts what is a process's own; PSS shares out what
several processes map. RSS is read at every tick. USS and PSS make the kernel walk the process's
page tables, about 4 ms for each GiB, while the process waits for its own page faults; so they are
read as often as costs at most a fiftieth of a core's time for all processes together, and more
often, at most a twentieth for each and a fifth together, while processes grow beyond what they had
at any reading, or were read before the latest one was started, with which they share pages since.
Between two readings PSS is carried on with RSS: what a process has more or less since is its own,
as a model is. The kernel's own high-water mark of RSS sees peaks between two ticks.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import msgspec
import psutil

INTERVAL = 0.05
"""Seconds between two ticks."""

# Share of the time that may go into reading USS and PSS of all processes.
_FULL_READ_SHARE = 0.02
# A process grows while it has this many times the most it had when both were read. It is read as
# soon where another one was started since.
_GROWTH = 1.02
# Shares while processes grow: for each of them, and for all.
_GROWING_SHARE_OF_ONE = 0.05
_GROWING_SHARE_OF_ALL = 0.2


class Sample(msgspec.Struct, omit_defaults=True):
    """The memory of one process at one time: a line of ``memory.jsonl``.

    Attributes:
        time: seconds since the epoch.
        process: its name in the run.
        rss: resident bytes, shared ones included.
        uss: bytes that are its own, where they were read at this tick.
        pss: its share, where it was read at this tick and the system has it.
    """

    time: float
    process: str
    rss: int
    uss: int | None = None
    pss: int | None = None


class ProcessMemory(msgspec.Struct):
    """Peaks of one process in bytes.

    Attributes:
        idle_rss: RSS after its imports; 0 if it never got that far.
        peak_rss: the kernel's high-water mark, or the highest sample.
        peak_uss: the highest USS sample.
    """

    idle_rss: int = 0
    peak_rss: int = 0
    peak_uss: int = 0

    @property
    def over_idle(self) -> int:
        """The peak of RSS beyond idle, in bytes; 0 where the process never got ready.

        The kernel counts a peak a little late, so that it may even lie below idle.
        """
        return max(self.peak_rss - self.idle_rss, 0) if self.idle_rss else 0


def own_rss() -> int:
    """Resident bytes of this process, now."""
    return int(psutil.Process().memory_info().rss)


def own_peak_rss() -> int:
    """The kernel's high-water mark of this process's resident bytes."""
    # Linux counts ru_maxrss in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class _Watched:
    """A process being sampled."""

    def __init__(self, pid: int) -> None:
        self.process = psutil.Process(pid)
        self.status = Path(f"/proc/{pid}/status")
        self.rss = 0
        self.shared = 0  # what RSS counted more than PSS when both were read
        self.started_when_read = 0  # how many processes had been, when both were read
        self._highest_read = 0  # the highest RSS at which both were read
        self._next_read = self._next_growing_read = 0.0

    def is_to_be_read(self, rss: int, started: int) -> bool:
        """Whether USS and PSS are to be read now, with so many processes started so far."""
        is_urgent = rss > _GROWTH * self._highest_read or started > self.started_when_read
        return time.monotonic() >= (self._next_growing_read if is_urgent else self._next_read)

    def read(self, processes: int) -> Any:
        """Read USS and PSS, and plan the next reading.

        It is the later, the longer this one took and the more processes there are.
        """
        began = time.monotonic()
        info: Any = self.process.memory_full_info()
        ended = time.monotonic()
        cost = ended - began
        self._next_read = ended + cost * processes / _FULL_READ_SHARE
        growing = min(_GROWING_SHARE_OF_ONE, _GROWING_SHARE_OF_ALL / processes)
        self._next_growing_read = ended + cost / growing
        self._highest_read = max(self._highest_read, info.rss)
        return info

    def high_water(self) -> int:
        """The kernel's high-water mark of RSS, or 0 where it does not tell."""
        try:
            text = self.status.read_text()
        except OSError:
            return 0
        for line in text.splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0


class _RoughPeak(NamedTuple):
    """The highest sum of PSS with old readings among it, and of how many processes at most."""

    total: int = 0
    processes: int = 0


class MemorySampler:
    """Samples processes on a thread of its own, and writes each sample as a line of JSON.

    Use it as a context manager.

    Args:
        path: where to write the samples, or None.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._file: IO[bytes] | None = path.open("ab", buffering=0) if path else None
        self._encoder = msgspec.json.Encoder()
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._peaks: dict[str, ProcessMemory] = {}
        self._started = 0  # processes, so far
        self._peak_total_pss = 0
        self._rough_peak = _RoughPeak()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)

    def watch(self, name: str, pid: int) -> None:
        """Sample the process ``pid`` under this name from now on."""
        with self._lock:
            try:
                self._watched[name] = _Watched(pid)
            except psutil.NoSuchProcess:
                return
            self._started += 1
            self._peaks.setdefault(name, ProcessMemory())

    def note(self, name: str, *, idle_rss: int = 0, peak_rss: int = 0) -> None:
        """Take what a process says of itself: RSS after its imports, high-water mark at its end."""
        with self._lock:
            memory = self._peaks.setdefault(name, ProcessMemory())
            memory.idle_rss = idle_rss or memory.idle_rss
            memory.peak_rss = max(memory.peak_rss, peak_rss)

    def peaks(self) -> Mapping[str, ProcessMemory]:
        """The peaks of every process so far, by name."""
        with self._lock:
            return {name: msgspec.structs.replace(peak) for name, peak in self._peaks.items()}

    def current_rss(self) -> Mapping[str, int]:
        """RSS of every living process at the last tick, by name."""
        with self._lock:
            return {name: watched.rss for name, watched in self._watched.items()}

    @property
    def peak_total_pss(self) -> int:
        """The highest sum of PSS (USS where there is no PSS) over all processes, in bytes.

        Where it was not read at a tick, it is carried on with RSS. While some were read before the
        latest one was started, a sum counts twice what these share. It stands until there is a
        better one of as many processes.
        """
        return max(self._peak_total_pss, self._rough_peak.total)

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL):
            self._tick()

    def _tick(self) -> None:
        with self._lock:
            for name, watched in list(self._watched.items()):
                try:
                    sample = self._sample(name, watched)
                except psutil.Error:
                    del self._watched[name]
                    continue
                self._write(self._encoder.encode(sample) + b"\n")
            total = sum(max(each.rss - each.shared, 0) for each in self._watched.values())
            count = len(self._watched)
            rough = self._rough_peak
            if any(each.started_when_read < self._started for each in self._watched.values()):
                self._rough_peak = _RoughPeak(max(rough.total, total), max(rough.processes, count))
                return
            self._peak_total_pss = max(self._peak_total_pss, total)
            if count >= rough.processes:
                self._rough_peak = _RoughPeak()

    def _write(self, line: bytes) -> None:
        # A run on a full disk has to end with its own error. Peaks are known without the file.
        with suppress(OSError):
            if self._file is None or self._file.write(line) == len(line):
                return
        assert self._file is not None
        self._file.close()
        self._file = None

    def _sample(self, name: str, watched: _Watched) -> Sample:
        now = time.time()
        peak = self._peaks[name]
        rss = int(watched.process.memory_info().rss)
        if watched.is_to_be_read(rss, self._started):
            info = watched.read(len(self._watched))
            watched.started_when_read = self._started
            sample = Sample(now, name, info.rss, info.uss, getattr(info, "pss", None))
            watched.shared = info.rss - (info.uss if sample.pss is None else sample.pss)
            peak.peak_uss = max(peak.peak_uss, info.uss)
        else:
            sample = Sample(now, name, rss)
        watched.rss = sample.rss
        peak.peak_rss = max(peak.peak_rss, sample.rss, watched.high_water())
        return sample

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._tick()
        if self._file:
            self._file.close()
