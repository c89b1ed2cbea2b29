"""The sampler of the memory of every process of a run.

RSS counts shared and file-backed pages, USS the pages of one process alone, and PSS divides shared
pages among the processes that map them. RSS is read at every tick. USS and PSS make the kernel walk
the process's page tables, about 4 ms for each GiB, while the process waits for its own page faults.
So they are read as often as takes a fiftieth of a core's time for all processes together. They are
read more often (a twentieth for each process and a fifth together) while a process grows beyond its
highest reading, or was last read before the newest process started, with which it shares pages;
and at once where there are more than twice as many processes since.
Between two readings, PSS is estimated from RSS: the difference in RSS since the last reading is
taken to be the process's own pages, such as a model, but for pages of files, which all processes
that map a checkpoint share. Where one maps many more of them, the others are read again, too. The
kernel's own high-water mark of RSS also includes peaks between two ticks.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, Self

import msgspec
import psutil
from msgspec import UNSET, UnsetType

from flstream.telemetry.process_group import FullMemory, ProcessGroup

INTERVAL = 0.05
"""Seconds between two ticks."""

# Share of the time that may go into reading USS and PSS of all processes.
_FULL_READ_SHARE = 0.02
# A process counts as growing above this multiple of its highest RSS at a reading. It is read as
# early if another process started since.
_GROWTH = 1.02
# Bytes of files that a process maps beyond what it had, before the others are read again: they may
# share them.
_MAPPED_MORE = 64 << 20
# Shares while processes grow: for each of them, and for all.
_GROWING_SHARE_OF_ONE = 0.05
_GROWING_SHARE_OF_ALL = 0.2


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


def read_samples(path: Path) -> Iterator[Sample | None]:
    """Yield the samples of a ``memory.jsonl`` in order, and None for each damaged line.

    A missing file has none. A last line without a line end, cut off with its run, is left out.

    Raises:
        OSError: The file cannot be read.
    """
    decoder = msgspec.json.Decoder(Sample)
    with suppress(FileNotFoundError), path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                try:
                    yield decoder.decode(line)
                except (ValueError, RecursionError):  # the decoder's errors are ValueErrors
                    yield None


class ProcessMemory(msgspec.Struct):
    """Peaks of one process in bytes.

    Attributes:
        idle_rss: RSS after its imports; 0 if it did not finish them.
        peak_rss: The kernel's high-water mark of RSS, or the highest sample.
        peak_uss: Highest USS sample.
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


class _Watched:
    """A process that is being sampled, with those that count as part of it."""

    def __init__(self, pid: int, others: Sequence[int] = ()) -> None:
        self.process = ProcessGroup(pid, others)
        self.rss = 0
        self.of_files = 0  # pages of files at the last tick, in bytes
        self._files_when_read = 0  # the same at the last reading
        self.most_of_files = 0  # the same when the others were last to be read again
        self.mappings_when_read = 0  # number of times that was so before the last reading
        self.shared = 0  # RSS minus PSS at the last reading, in bytes
        self.started_when_read = 0  # number of processes started before the last reading
        self._highest_read = 0  # highest RSS at a reading, in bytes
        self._next_read = self._next_growing_read = 0.0

    @property
    def pss(self) -> int:
        """Estimate of PSS, in bytes."""
        more_of_files = max(self.of_files - self._files_when_read, 0)
        return max(self.rss - self.shared - more_of_files, 0)

    def is_to_be_read(self, rss: int, started: int, mappings: int = 0) -> bool:
        """Return whether USS and PSS are due to be read.

        Args:
            rss: RSS now, in bytes.
            started: How many processes were started.
            mappings: How often one has mapped many more pages of files.
        """
        # What it shares may be shared by twice as many now: it cannot wait, nor is that often so.
        if started > 2 * self.started_when_read:
            return True
        is_urgent = rss > _GROWTH * self._highest_read or started > self.started_when_read
        is_urgent = is_urgent or mappings > self.mappings_when_read
        return time.monotonic() >= (self._next_growing_read if is_urgent else self._next_read)

    def read(self, processes: int) -> FullMemory:
        """Read USS and PSS, and schedule the next reading.

        The interval grows with the time that this reading took and with the number of processes.
        """
        began = time.monotonic()
        info = self.process.memory_full_info()
        ended = time.monotonic()
        cost = ended - began
        self._next_read = ended + cost * processes / _FULL_READ_SHARE
        growing = min(_GROWING_SHARE_OF_ONE, _GROWING_SHARE_OF_ALL / processes)
        self._next_growing_read = ended + cost / growing
        self._highest_read = max(self._highest_read, info.rss)
        self._files_when_read = self.of_files
        return info


class _RoughPeak(NamedTuple):
    """The highest sum of PSS that includes old readings, and the most processes in such a sum."""

    total: int = 0
    processes: int = 0


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
    """Samples processes on a thread of its own, and writes each sample as a line of JSON.

    Use it as a context manager.

    Args:
        path: Path of the file for the samples, or None.
        keeps: Whether samples are kept for :meth:`collect`.
    """

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
        self._started = 0  # number of processes so far
        self._mappings = 0  # how often one has mapped many more pages of files
        self._peak_total_pss = 0
        self._rough_peak = _RoughPeak()
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
            self._started += 1
            self._peaks.setdefault(name, ProcessMemory())

    def watches(self, name: str) -> bool:
        """Return whether a process of this name lives here, and is not one of another node."""
        with self._lock:
            return name in self._watched

    def note(self, name: str, *, idle_rss: int = 0, peak_rss: int = 0) -> None:
        """Take what a process reported: RSS after its imports, high-water mark at its end."""
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
        """Take what the sampler of another node has measured.

        Args:
            node: Name of the node.
            memory: What it has measured.
        """
        with self._lock:
            self._rss_elsewhere[node] = {sample.process: sample.rss for sample in memory.samples}
            self._pss_elsewhere[node] = memory.peak_total_pss
            together = sum(self._pss_elsewhere[name] for name in self._rss_elsewhere)
            self._peak_elsewhere = max(self._peak_elsewhere, together)
            for sample in memory.samples:
                sample.node = node
                self._write(self._encoder.encode(sample) + b"\n")
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
        """Take the processes of a node that is lost for ended."""
        with self._lock:
            self._rss_elsewhere.pop(node, None)

    def peaks(self) -> Mapping[str, ProcessMemory]:
        """Return the peaks of every process so far, by name."""
        with self._lock:
            return {name: msgspec.structs.replace(peak) for name, peak in self._peaks.items()}

    def current_rss(self) -> Mapping[str, int]:
        """Return the RSS in bytes of every living process at the last tick, by name."""
        with self._lock:
            rss = {name: watched.rss for name, watched in self._watched.items()}
            for of_node in self._rss_elsewhere.values():
                rss = {**of_node, **rss}
            return rss

    @property
    def peak_total_pss(self) -> int:
        """Return the highest sum over all processes of PSS (USS where there is no PSS), in bytes.

        Where PSS was not read at a tick, it is estimated from RSS. While some processes were last
        read before the newest one started, or before one mapped many more pages of files, a sum
        counts twice the pages that they share with it.
        Such a sum counts only until there is a better one of as many processes. The peaks of nodes
        that were there together are added, though they may have been at other times.
        """
        own_peak = max(self._peak_total_pss, self._rough_peak.total)
        return own_peak + self._peak_elsewhere

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
                if self._kept is not None:
                    self._kept.append(sample)
            total = sum(watched.pss for watched in self._watched.values())
            count = len(self._watched)
            rough = self._rough_peak
            if any(
                watched.started_when_read < self._started
                or watched.mappings_when_read < self._mappings
                for watched in self._watched.values()
            ):
                self._rough_peak = _RoughPeak(max(rough.total, total), max(rough.processes, count))
                return
            self._peak_total_pss = max(self._peak_total_pss, total)
            if count >= rough.processes:
                self._rough_peak = _RoughPeak()

    def _write(self, line: bytes) -> None:
        # A run on a full disk is to end with its own error. Peaks do not need the file.
        with suppress(OSError):
            if self._file is None or self._file.write(line) == len(line):
                return
        assert self._file is not None
        self._file.close()
        self._file = None

    def _sample(self, name: str, watched: _Watched) -> Sample:
        now = time.time()
        peak = self._peaks[name]
        rss, watched.of_files = watched.process.resident()
        if watched.of_files > watched.most_of_files + _MAPPED_MORE:
            watched.most_of_files = watched.of_files
            self._mappings += 1
        if watched.is_to_be_read(rss, self._started, self._mappings):
            info = watched.read(len(self._watched))
            watched.started_when_read = self._started
            watched.mappings_when_read = self._mappings
            sample = Sample(now, name, info.rss, info.uss, info.pss)
            watched.shared = info.rss - (info.uss if sample.pss is None else sample.pss)
            peak.peak_uss = max(peak.peak_uss, info.uss)
        else:
            sample = Sample(now, name, rss)
        watched.rss = sample.rss
        peak.peak_rss = max(peak.peak_rss, sample.rss, watched.process.high_water())
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
