"""The memory of a process, together with that of others that count as part of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil

ReadT = TypeVar("ReadT")


class FullMemory(NamedTuple):
    """Memory in bytes: RSS, USS, and PSS, which is None where the system lacks it."""

    rss: int
    uss: int
    pss: int | None


class Resident(NamedTuple):
    """Resident memory in bytes: all of it, and pages of files among it."""

    rss: int
    of_files: int


class ProcessGroup:
    """A process, and others whose memory is added to its own, such as a site's other ranks.

    Args:
        pid: Pid of the process.
        others: Pids of the others.

    Raises:
        psutil.NoSuchProcess: The process has ended; the others may have.
    """

    def __init__(self, pid: int, others: Sequence[int] = ()) -> None:
        self._process = psutil.Process(pid)
        self._others: list[psutil.Process] = []
        for other in others:
            with suppress(psutil.NoSuchProcess):
                self._others.append(psutil.Process(other))
        self._status = Path(f"/proc/{pid}/status")

    def resident(self) -> Resident:
        """Read RSS, and how much of it is pages of files.

        Raises:
            psutil.Error: The process has ended.
        """
        parts = [_resident(self._process), *self._of_others(_resident)]
        return Resident(sum(part.rss for part in parts), sum(part.of_files for part in parts))

    def memory_full_info(self) -> FullMemory:
        """Read RSS, USS and PSS.

        Raises:
            psutil.Error: The process has ended.
        """
        parts = [_full_memory(self._process), *self._of_others(_full_memory)]
        # Either all of them have PSS or none has.
        pss = None if parts[0].pss is None else sum(part.pss or 0 for part in parts)
        return FullMemory(sum(part.rss for part in parts), sum(part.uss for part in parts), pss)

    def high_water(self) -> int:
        """Return the kernel's high-water mark of the process's RSS, or 0 where it does not tell."""
        return _kib(self._status, "VmHWM:") << 10

    def _of_others(self, read: Callable[[psutil.Process], ReadT]) -> list[ReadT]:
        """Read something of each of the others, and forget those that have ended."""
        readings = []
        for process in list(self._others):
            try:
                readings.append(read(process))
            except psutil.Error:
                self._others.remove(process)
        return readings


def _resident(process: psutil.Process) -> Resident:
    of_files = _kib(Path(f"/proc/{process.pid}/status"), "RssFile:") << 10
    return Resident(int(process.memory_info().rss), of_files)


def _kib(status: Path, key: str) -> int:
    """Read a number of KiB from a process's status; 0 where that does not have it."""
    try:
        text = status.read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(key)), 0)


def _full_memory(process: psutil.Process) -> FullMemory:
    info: Any = process.memory_full_info()
    return FullMemory(info.rss, info.uss, getattr(info, "pss", None))
