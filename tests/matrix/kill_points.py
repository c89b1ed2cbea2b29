"""Kills of a run's processes at named points (see flstream/telemetry/halts.py)."""

import json
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil
from matrix_runs import JOB, simulate_job
from run_fixtures import shared_host_for

from flstream.engines.processes import ProcessHost
from flstream.job import load_job
from flstream.telemetry import memory
from flstream.telemetry.halts import SOCKET

PATIENCE = 120.0
"""Seconds after which a run of a fraction of a second counts as stuck."""

WORKERS = "clients.parallel=2"
"""A server and two workers."""


class KillAt:
    """Calls a function with the pid of a process that comes to a point, and then lets it go.

    Args:
        point: Name of the point.
        time: Which of the times counts that any process of the run comes there, from 1.
        kill: Kills what is to be killed, and returns whether that is there yet; else it is called
            the next time.

    Attributes:
        was_reached: Whether it was called.
    """

    def __init__(self, point: str, time: int, kill: Callable[[int], bool]) -> None:
        self.was_reached = False
        self._wanted = point, time
        self._kill = kill
        self._path = os.environ[SOCKET]
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        self._listener.listen(100)
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        times: Counter[str] = Counter()
        while True:
            with self._listener.accept()[0] as process:
                point, _, pid = process.recv(100).decode().partition(" ")
                if not point:
                    return  # it is this process, which wants no more
                times[point] += 1
                wanted, time = self._wanted
                if point == wanted and times[point] >= time and not self.was_reached:
                    self.was_reached = self._kill(int(pid))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(self._path)
        self._thread.join()
        os.unlink(self._path)
        self._listener.close()


def run_killed(
    folder: Path, overrides: list[str], point: str, time: int, victim: str, *, resume: bool = False
) -> bool:
    """Run the matrix's job until a victim is killed at a point, and wait until all have ended.

    Args:
        folder: Path of the run directory.
        overrides: Overrides of the job.
        point: Name of the point.
        time: Which of the times counts that the run comes there.
        victim: ``server``, ``worker`` (the one at the point, if one is), ``launcher`` or ``all``.
        resume: Whether the run goes on, rather than begins.

    Returns:
        Whether the run came to the point.
    """
    everyone: list[psutil.Process] = []

    def kill(halted: int) -> bool:
        pids = {"launcher": launcher.pid, **_pids(folder)}
        if victim == "all":
            chosen = [*pids.values()]
        elif victim == "worker":
            workers = {pids[name] for name in pids.keys() - {"launcher", "server"}}
            chosen = [halted] if halted in workers else sorted(workers)[:1]
        else:
            chosen = [pids[victim]] if victim in pids else []
        for pid in pids.values() if chosen else ():
            with suppress(psutil.NoSuchProcess):
                everyone.append(psutil.Process(pid))
        for pid in chosen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(chosen)

    # In a process of its own, which is forked from where the run's others are.
    with shared_host_for(load_job(JOB, overrides)) as host, KillAt(point, time, kill) as at:
        launcher = host.start("launcher", f"{__name__}:_launch", folder, overrides, resume)
        assert launcher.exit_code(PATIENCE) is not None
        _, alive = psutil.wait_procs(everyone, timeout=PATIENCE)
        assert alive == []
    return at.was_reached


def _launch(folder: Path, overrides: list[str], resume: bool) -> None:
    """Run the job in this process, which has the imports of the others and forks them."""
    memory.INTERVAL = 1.0  # as in conftest.py
    simulate_job(folder, overrides, resume=resume, host=ProcessHost.forked())


def _pids(folder: Path) -> dict[str, int]:
    """Pids of a run's processes, by name."""
    journal = folder / "events.jsonl"
    lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
    ready = [event for event in map(json.loads, lines) if event["kind"] == "process_ready"]
    return {event["process"]: event["pid"] for event in ready}
