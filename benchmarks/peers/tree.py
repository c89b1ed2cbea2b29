"""The processes of one run, down to the last descendant: started, sampled, and ended together."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import psutil

from flstream.simulation.interruption import handling

INTERVAL = 0.05
"""Seconds between two readings of every process's high-water mark of RSS."""

# PSS makes the kernel walk the page tables of every process, while these wait for it. It is read as
# often as takes this share of one core, and no oftener than the rest.
PSS_SHARE = 0.05

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own has ended, so that none gets out of sight."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel does not let this process adopt orphans")


def run_to_end(
    command: Sequence[str], env: Mapping[str, str], folder: Path, log: Path, deadline: float
) -> int | None:
    """Run a command; whatever it started and did not end is killed with it.

    Args:
        command: Program and arguments.
        env: All of its environment.
        folder: Its working directory.
        log: File for what it prints.
        deadline: Seconds until it is killed.

    Returns:
        The exit status, or None if the deadline passed.
    """
    with log.open("wb") as output, ExitStack() as stack:
        stack.callback(_kill_descendants)
        # In a session of its own, so that Ctrl-C reaches this process alone.
        process = subprocess.Popen(
            command,
            env=dict(env),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(deadline)
        except subprocess.TimeoutExpired:
            return None


@handling(lambda *_: None)  # a second Ctrl-C must not cut this short
def _kill_descendants() -> None:
    # Those that are being killed may start others, so look again until there are none.
    while living := psutil.Process().children(recursive=True):
        for process in living:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with suppress(ChildProcessError):
            while os.waitpid(-1, 0)[0]:
                pass


class TreeSampler:
    """Samples every descendant of this process on a thread of its own, as a context manager.

    Attributes:
        peak_rss: The kernel's high-water mark of RSS in bytes, of each process by its pid.
        peak_pss: The highest sum of PSS over all processes at one time, in bytes. Shared pages
            count once, those of shared memory (``/dev/shm``) among them.
    """

    def __init__(self) -> None:
        self.peak_rss: dict[int, int] = {}
        self.peak_pss = 0
        self._next_pss = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tree-sampler", daemon=True)

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL):
            pids = [process.pid for process in psutil.Process().children(recursive=True)]
            for pid in pids:
                self.peak_rss[pid] = max(self.peak_rss.get(pid, 0), _kib(pid, "status", "VmHWM:"))
            began = time.monotonic()
            if began >= self._next_pss:
                total = sum(_kib(pid, "smaps_rollup", "Pss:") for pid in pids)
                self.peak_pss = max(self.peak_pss, total)
                self._next_pss = began + (time.monotonic() - began) / PSS_SHARE

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()


def _kib(pid: int, file: str, key: str) -> int:
    """A line of /proc, in bytes; 0 if the process has gone or does not say."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024
    return 0
