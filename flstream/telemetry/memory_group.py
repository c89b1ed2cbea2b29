"""The control group around a run's processes: its memory, and the processes it has killed."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from flstream.telemetry import MEMORY_GROUP
from flstream.units import format_bytes

STOPS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
"""Signals that stop a run, and wait until its group is removed."""
# A group is at its limit within this much: each core charges memory in batches.
_SLACK_BYTES = 16 << 20
# Time for killed processes to give their memory back.
_END_SECONDS = 5.0
# Time after which a kill that nobody asked about is an old one.
_RECENT_SECONDS = 5.0


class GroupFiles(NamedTuple):
    """Names of a group's files in one version of control groups."""

    limit: str
    swap: str  # in version 1, of memory and swap together
    usage: str
    peak: str
    events: str
    anonymous: tuple[str, str]  # in memory.stat: what the kernel cannot drop for want of swap


V2 = GroupFiles(
    *("memory.max", "memory.swap.max", "memory.current", "memory.peak", "memory.events"),
    ("anon", "shmem"),
)
V1 = GroupFiles(
    *("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.usage_in_bytes"),
    *("memory.max_usage_in_bytes", "memory.oom_control"),
    ("total_rss", "total_shmem"),
)


class MemoryGroup:
    """Control group around the processes of a run.

    Args:
        variable: Value of the environment variable of the run's processes.

    Attributes:
        owner: Pid of the process that has entered it first.
        limit: Limit in bytes.
        path: Its folder.
        peak_anonymous: Highest sample of its anonymous and shared memory, without cached files.
    """

    peak_anonymous = 0

    def __init__(self, variable: str) -> None:
        owner, limit, home, path = variable.split("\n")
        self.owner, self.limit, self.path = int(owner), int(limit), Path(path)
        # The group that the owner came from; systemd removes its groups itself.
        self._home = Path(home) if home else None
        self._files = V2 if (self.path / V2.limit).exists() else V1
        self._highest = 0
        self._explained = self.kills()

    def peak(self) -> int:
        """Return the group's peak in bytes; before Linux 5.19, the highest usage at a call."""
        with suppress(OSError):
            name = self._files.peak if self._has_peak() else self._files.usage
            self._highest = max(self._highest, int((self.path / name).read_text()))
        return self._highest

    def sample(self) -> None:
        """Read the memory of the group, for its peaks."""
        self.peak()
        with suppress(OSError):
            stat = dict(map(str.split, (self.path / "memory.stat").read_text().splitlines()))
            anonymous = sum(int(stat.get(name, 0)) for name in self._files.anonymous)
            self.peak_anonymous = max(self.peak_anonymous, anonymous)

    def kills(self) -> int:
        """Return how many of its processes the kernel has killed, at whatever limit."""
        return self._count("oom_kill")

    def explains_kill(self, before: int) -> bool:
        """Return whether the limit explains one more kill after others were counted."""
        known = max(self._explained, before)
        # Version 1 does not count how often a group has run out of memory.
        is_at_limit = self.peak() + _SLACK_BYTES >= self.limit
        ran_out = self._count("oom") > 0 if self._files is V2 else is_at_limit
        if self.kills() <= known or not ran_out:
            return False
        self._explained = known + 1
        return True

    def _count(self, event: str) -> int:
        lines = list[str]()
        with suppress(OSError):
            lines = (self.path / self._files.events).read_text().splitlines()
        return int(dict(line.split() for line in lines).get(event, 0))

    def leave(self) -> None:
        """Move this process, and what the run has left, back to where it was; remove the group.

        Signals that stop a run wait until then.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            self._leave()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _leave(self) -> None:
        self.peak()
        os.environ.pop(MEMORY_GROUP, None)
        if self._home is None:
            return
        for pid in self._pids():
            with suppress(OSError):
                (self._home / "cgroup.procs").write_text(pid)
        deadline = monotonic() + _END_SECONDS
        for pid in self._pids():  # one that is ending cannot be moved
            if pid not in ("0", str(os.getpid())):
                with suppress(OSError):  # it is gone, or the kernel has no pidfd_open
                    _wait(int(pid), deadline - monotonic())
        with suppress(OSError):  # then it is as one whose run was killed
            self.path.rmdir()

    def _has_peak(self) -> bool:
        return (self.path / self._files.peak).exists()

    def _pids(self) -> list[str]:
        with suppress(OSError):
            return (self.path / "cgroup.procs").read_text().split()
        return []


_present: dict[tuple[int, str], MemoryGroup] = {}  # by process, as a fork has its parent's


def present() -> MemoryGroup | None:
    """Return the group of the run that this process is a part of; None without a limit."""
    variable = os.environ.get(MEMORY_GROUP)
    if variable is None:
        return None
    key = os.getpid(), variable
    if key not in _present:
        try:
            _present[key] = MemoryGroup(variable)
        except ValueError:  # flstream has not set it
            return None
    return _present[key]


class LimitKills:
    """Kills at the memory limit from now on; there are none without a limit."""

    def __init__(self) -> None:
        self._group = present()
        self.renew()

    def renew(self) -> None:
        """Leave kills so far out."""
        if self._group is not None:
            self._before = self._recent = self._group.kills()
            self._renewed = monotonic()

    def forget_old(self) -> None:
        """Leave kills out that are older than some seconds; to be called all the time."""
        if self._group is not None and monotonic() - self._renewed > _RECENT_SECONDS:
            before = self._recent
            self.renew()
            self._before = before

    def clause(self, remedy: str = "") -> str:
        """Return a clause on a process that was killed at the limit; each kill is told once.

        Args:
            remedy: What may be done instead of raising the limit, as the end of a list.

        Returns:
            The clause, from its comma on; empty where the limit was not the reason.
        """
        if self._group is None or not self._group.explains_kill(self._before):
            return ""
        return (
            f", as the processes of the run together reached memory_limit = "
            f"{format_bytes(self._group.limit)}; raise it (flstream validate estimates the need)"
            f"{remedy}"
        )


def _wait(pid: int, seconds: float) -> None:
    """Wait until a process has ended, ``seconds`` at most."""
    pidfd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(max(seconds, 0.0) * 1e3)
    finally:
        os.close(pidfd)
