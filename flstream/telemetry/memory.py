"""The sampler of the memory of every process of a run.

RSS counts shared and file-backed pages, USS the pages of one process alone, and PSS divides shared
pages among the processes that map them. RSS is read at every tick, with the kernel's own high-water
mark, which also includes peaks between two ticks. USS and PSS make the kernel walk the process's
page tables, about 4 ms for each GiB, while the process waits for its own page faults. So they are
read each second, of all processes at once: a sum of PSS counts shared pages once only if all its
terms are of one time. Between two readings, both are carried on with RSS: its growth is taken to be
the process's own pages, such as a model, but for pages of files, which all processes that map a
checkpoint share.
"""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import IO, Any, Self

import msgspec
import psutil
from msgspec import UNSET, UnsetType

INTERVAL = 0.05
"""Seconds between two ticks."""

# Seconds between two readings of USS and PSS; more where they would take a larger share of a core's
# time, and fewer, within that share, where a process has started.
_READING_INTERVAL = 1.0
_READING_SHARE = 0.05


class Sample(msgspec.Struct, omit_defaults=True):
    """Memory of one process at one time: a line of ``memory.jsonl``.

    Attributes:
        time: Seconds since the epoch.
        process: Name of the process in the run.
        rss: Resident bytes, with shared pages.
        uss: Bytes of the process alone; None where they were not read at this tick.
        pss: Proportional share in bytes; None where it was not read or the system lacks it.
        node: Name of the node that the process is on; None for the machine of the launcher.
    """

    time: float
    process: str
    rss: int
    uss: int | None = None
    pss: int | None = None
    node: str | None = None


def read_samples(lines: Iterable[bytes]) -> Iterator[Sample | None]:
    """Yield the samples of lines of a ``memory.jsonl``, and None for damaged lines.

    A missing file has none.

    Raises:
        OSError: The file cannot be read.
    """
    decoder = msgspec.json.Decoder(Sample)
    with suppress(FileNotFoundError):
        for line in lines:
            try:
                yield decoder.decode(line)
            except (ValueError, RecursionError):  # the decoder's errors are ValueErrors
                yield None


class ProcessMemory(msgspec.Struct):
    """Peaks of one process in bytes.

    Attributes:
        idle_rss: RSS after its imports; 0 if it did not finish them.
        peak_rss: The kernel's high-water mark of RSS, or the highest sample.
        peak_uss: Highest USS, carried on with RSS between two readings.
        node: Name of the node that it was on last; unset for the machine of the launcher.
    """

    idle_rss: int = 0
    peak_rss: int = 0
    peak_uss: int = 0
    node: str | UnsetType = UNSET

    @property
    def over_idle(self) -> int:
        """Peak of RSS above idle, in bytes; 0 if the process did not finish its imports.

        The kernel updates the peak with a delay, so that it may even be below idle.
        """
        return max(self.peak_rss - self.idle_rss, 0) if self.idle_rss else 0


def own_rss() -> int:
    """Return the present resident bytes of this process."""
    return int(psutil.Process().memory_info().rss)


def rss_of(pid: int) -> int:
    """Return the present resident bytes of a process; 0 if it has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def own_peak_rss() -> int:
    """Return the kernel's high-water mark of this process's resident bytes."""
    # Linux counts ru_maxrss in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _resident(process: psutil.Process) -> tuple[int, int, int]:
    """Return the bytes of RSS, of its file pages, and of its high-water mark."""
    with suppress(OSError, KeyError):  # a zombie has a status without memory
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        kib = {line.split()[0]: line.split()[1] for line in lines if line.endswith(" kB")}
        rss, of_files, high_water = (
            int(kib[key]) << 10 for key in ("VmRSS:", "RssFile:", "VmHWM:")
        )
        return rss, of_files, high_water
    raise psutil.NoSuchProcess(process.pid)


class _Watched:
    """Process that is being sampled, together with others."""

    def __init__(self, pid: int, others: Sequence[int] = ()) -> None:
        self._process = psutil.Process(pid)
        self._others: list[psutil.Process] = []
        for other in others:
            with suppress(psutil.NoSuchProcess):
                self._others.append(psutil.Process(other))
        self.rss = self.high_water = 0
        # USS and PSS (USS where there is no PSS), read or carried on; 0 before the first reading.
        self.uss = self.pss = 0
        self._reading = 0, 0, sys.maxsize  # both, and the process's own pages by RSS, when read

    def tick(self, *, reads: bool) -> tuple[int | None, int | None]:
        """Read RSS, and estimate USS and PSS, or read these, too."""
        read = self._of_all(lambda process: process.memory_full_info()) if reads else []
        uss = sum(part.uss for part in read) if read else None
        # Either all of them have PSS or none has.
        pss = sum(part.pss for part in read) if read and hasattr(read[0], "pss") else None
        sizes = self._of_all(_resident)
        self.rss, of_files, _ = (sum(column) for column in zip(*sizes, strict=True))
        self.high_water = sizes[0][2]  # of the process alone
        own = self.rss - of_files
        if uss is not None:
            self._reading = uss, uss if pss is None else pss, own
        read_uss, read_pss, read_own = self._reading
        growth = max(own - read_own, 0)
        self.uss, self.pss = min(read_uss + growth, self.rss), read_pss + growth
        return uss, pss

    def _of_all(self, read: Callable[[psutil.Process], Any]) -> list[Any]:
        """Read a number of the process and of the others that have not ended."""
        readings = [read(self._process)]
        for process in list(self._others):
            try:
                readings.append(read(process))
            except psutil.Error:
                self._others.remove(process)
        return readings


class NodeMemory(msgspec.Struct, frozen=True):
    """Measurements of another node's sampler since the last message.

    Attributes:
        samples: The samples.
        peaks: Peaks of each process so far, by name.
        peak_total_pss: Highest sum of PSS over the node's processes so far, in bytes.
    """

    samples: list[Sample] = []
    peaks: dict[str, ProcessMemory] = {}
    peak_total_pss: int = 0


class MemorySampler:
    """Sampler of processes on its own thread, with each sample as a line of JSON.

    Use it as a context manager.

    Args:
        path: Path of the file for the samples, or None.
        keeps: Whether samples are kept for :meth:`collect`.

    Attributes:
        on_tick: Function called at each tick.
    """

    on_tick: Callable[[], object] | None = None

    def __init__(self, path: Path | None = None, *, keeps: bool = False) -> None:
        self._file: IO[bytes] | None = path.open("ab", buffering=0) if path else None
        self._encoder = msgspec.json.Encoder()
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._peaks: dict[str, ProcessMemory] = {}
        self._kept: list[Sample] | None = [] if keeps else None
        # RSS of the processes of other nodes at their last sample, and PSS, by node.
        self._rss_elsewhere: dict[str, dict[str, int]] = {}
        self._pss_elsewhere: dict[str, int] = {}
        self._peak_elsewhere = 0  # highest sum of those of nodes that were there together
        self._peak_pss = 0  # highest sum of those here
        # When USS and PSS are next read, and when they may be if a process starts.
        self._reads_at = self._may_read_at = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)

    def watch(self, name: str, pid: int, others: Sequence[int] = ()) -> None:
        """Sample the process ``pid`` under a name from now on.

        Args:
            name: Name of the process.
            pid: Its pid.
            others: Pids of processes whose memory is added to its own.
        """
        with self._lock:
            try:
                self._watched[name] = _Watched(pid, others)
            except psutil.NoSuchProcess:
                return
            self._reads_at = self._may_read_at
            self._peaks.setdefault(name, ProcessMemory())

    def watches(self, name: str) -> bool:
        """Return whether a local process has this name."""
        with self._lock:
            return name in self._watched

    def note(self, name: str, *, idle_rss: int = 0, peak_rss: int = 0) -> None:
        """Take a process's report: RSS after its imports, high-water mark at its end."""
        with self._lock:
            memory = self._peaks.setdefault(name, ProcessMemory())
            memory.idle_rss = idle_rss or memory.idle_rss
            memory.peak_rss = max(memory.peak_rss, peak_rss)

    def collect(self) -> NodeMemory:
        """Return the measurements since the last call, for another node's :meth:`take`."""
        with self._lock:
            samples, self._kept = self._kept or [], [] if self._kept is not None else None
        return NodeMemory(samples, dict(self.peaks()), self.peak_total_pss)

    def take(self, node: str, memory: NodeMemory) -> None:
        """Take the measurements of another node's sampler.

        Args:
            node: Name of the node.
            memory: Measurements of the sampler.
        """
        with self._lock:
            self._rss_elsewhere[node] = {sample.process: sample.rss for sample in memory.samples}
            self._pss_elsewhere[node] = memory.peak_total_pss
            together = sum(self._pss_elsewhere[name] for name in self._rss_elsewhere)
            self._peak_elsewhere = max(self._peak_elsewhere, together)
            for sample in memory.samples:
                sample.node = node
                self._write(sample)
                self._peaks.setdefault(sample.process, ProcessMemory()).node = node
            for name, theirs in memory.peaks.items():
                peak = self._peaks.setdefault(name, ProcessMemory())
                peak.peak_rss = max(peak.peak_rss, theirs.peak_rss)
                peak.peak_uss = max(peak.peak_uss, theirs.peak_uss)

    @property
    def nodes(self) -> Mapping[str, int]:
        """Highest sum of PSS over the processes of each other node, in bytes, by node."""
        with self._lock:
            return dict(self._pss_elsewhere)

    def forget(self, node: str) -> None:
        """Count the processes of a lost node as ended."""
        with self._lock:
            self._rss_elsewhere.pop(node, None)

    def peaks(self) -> Mapping[str, ProcessMemory]:
        """Return the peaks of every process so far, by name."""
        with self._lock:
            return {name: copy(peak) for name, peak in self._peaks.items()}

    def current_rss(self) -> Mapping[str, int]:
        """Return the RSS in bytes of every living process at the last tick, by name."""
        with self._lock:
            local = {name: watched.rss for name, watched in self._watched.items()}
            return dict(ChainMap(local, *self._rss_elsewhere.values()))

    @property
    def peak_total_pss(self) -> int:
        """Highest sum of all processes' PSS (USS without PSS), in bytes.

        A process that has started counts from the next reading on. The peaks of nodes that were
        there together are added, though they may have been at other times.
        """
        return self._peak_pss + self._peak_elsewhere

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL):
            self._tick()

    def _tick(self) -> None:
        if self.on_tick is not None:
            self.on_tick()
        with self._lock:
            began = time.monotonic()
            reads = began >= self._reads_at
            for name, watched in list(self._watched.items()):
                try:
                    uss, pss = watched.tick(reads=reads)
                except psutil.Error:
                    del self._watched[name]
                    continue
                peak = self._peaks[name]
                peak.peak_rss = max(peak.peak_rss, watched.rss, watched.high_water)
                peak.peak_uss = max(peak.peak_uss, watched.uss)
                sample = Sample(time.time(), name, watched.rss, uss, pss)
                self._write(sample)
                if self._kept is not None:
                    self._kept.append(sample)
            total = sum(watched.pss for watched in self._watched.values())
            self._peak_pss = max(self._peak_pss, total)
            if reads:
                self._may_read_at = began + (time.monotonic() - began) / _READING_SHARE
                self._reads_at = max(self._may_read_at, began + _READING_INTERVAL)

    def _write(self, sample: Sample) -> None:
        line = self._encoder.encode(sample) + b"\n"
        # A run on a full disk is to end with its own error. Peaks do not need the file.
        with suppress(OSError):
            if self._file is None or self._file.write(line) == len(line):
                return
        assert self._file is not None
        self._file.close()
        self._file = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._tick()
        if self._file:
            self._file.close()
