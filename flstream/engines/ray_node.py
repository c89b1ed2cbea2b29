"""The actor on a node of a Ray cluster: starts, kills and measures workers there.

Ray calls its methods, each on some thread. If the actor ends, for whatever reason, its fork server
ends all that it has started.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

from flstream.engines.child_process import ProcessCall
from flstream.engines.gpus import GpuDealer, visible_gpus
from flstream.engines.processes import (
    FORK_SERVER,
    OTHER_IMPORTS,
    PRELOAD,
    Process,
    ProcessHost,
    variables_of,
)
from flstream.engines.ray import NONCE_FILE
from flstream.errors import SimulationError, UsageError
from flstream.job import Job
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.events import BaseReady
from flstream.telemetry.machine import processor_name, versions
from flstream.telemetry.memory import MemorySampler, NodeMemory

# Seconds after which a poll is answered if no worker has ended.
_POLL_SECONDS = 1.0
# Seconds for the fork server to make its imports.
_IMPORT_SECONDS = 120.0
# Seconds without a poll after which the run is taken to be gone.
_ORPHANED_SECONDS = 8.0
# Libraries whose versions decide bits, and flstream, whose messages have to agree.
_EQUAL = ("flstream", "Python", "torch", "numpy")
_BASE_BUILDER = "flstream.simulation.base_builder:built_here"
# Seconds for the base to be built or read.
_BASE_SECONDS = 3600.0
_WORKER = "flstream.simulation.worker_process:node_worker"


class NodeHost:
    """The actor; several of its methods may run at the same time."""

    def __init__(self) -> None:
        self._sampler = MemorySampler(keeps=True)
        self._workers: dict[str, Process] = {}
        self._is_polled = threading.Event()

    def describe(self, run: RunDirectory, nonce: str, expected: Mapping[str, str]) -> str:
        """Return the name of the processor of a node that can be used."""
        installed, copy = versions(), os.getcwd()
        for library in _EQUAL:
            own, theirs = installed.get(library, "none"), expected.get(library, "none")
            if own != theirs:
                raise SimulationError(
                    f"it has {library} {own}, and the run {theirs}; install the same, since other "
                    "versions may give other bits"
                )
        _expect_directory(run.path, nonce)
        # Ray puts its copy of the folder in front, where a file of the job would hide a module, and
        # modules of its own.
        ray = Path(sys.modules["ray"].__file__ or "").resolve().parent
        paths = [path for path in sys.path if not Path(path).resolve().is_relative_to(ray)]
        sys.path[:] = [path for path in paths if path != copy]
        return processor_name()

    def prepare(self, name: str, job: Job, run: RunDirectory) -> None:
        """Get ready to start workers: make imports, and build the base that they map."""
        job = job.moved(Path.cwd())
        self._gpus = GpuDealer(visible_gpus(), job.engine.gpus)
        variables = variables_of(job)
        variables[PRELOAD] = ",".join(filter(None, [variables.get(PRELOAD), *OTHER_IMPORTS]))
        self._host = ProcessHost(variables)
        self._host.__enter__()
        # Its imports may take long on a cold file system, and would keep starts and polls waiting.
        self._host.start("first", "time:sleep", 0).exit_code(_IMPORT_SECONDS)
        build_base(self._host, job, run.log(f"base-builder-{name}"))
        self._sampler.__enter__()
        self._sampler.watch(f"{name}/actor", os.getpid())
        self._sampler.watch(f"{name}/{FORK_SERVER}", self._host.fork_server_pid or 0)
        threading.Thread(target=self._end_if_orphaned, daemon=True).start()

    def start(
        self, job: Job, run: RunDirectory, name: str, address: str, keys: Mapping[str, bytes]
    ) -> None:
        """Start a worker, which connects to the driver."""
        self.kill(name)  # one that was given up may be alive
        arguments = job.moved(Path.cwd()), run, name, self._gpus.deal(name), address, keys
        try:
            process = self._workers[name] = self._host.start(name, _WORKER, *arguments)
        except OSError:
            self._gpus.give_back(name)
            raise
        self._sampler.watch(name, process.pid)

    def kill(self, name: str) -> None:
        """Kill a worker with all that it has started, unless it has ended."""
        if (process := self._workers.get(name)) is not None:
            process.kill()

    def poll(
        self, watched: Sequence[tuple[str, int, Sequence[int]]]
    ) -> tuple[dict[str, int | None], NodeMemory]:
        """Return exit codes of ended workers by name, and measurements.

        Returns when a worker ends, or after a second.
        """
        self._is_polled.set()
        for name, pid, others in watched:
            if self._sampler.watches(name):
                self._sampler.watch(name, pid, others)
        workers, ended = dict(self._workers), dict[str, int | None]()
        ready = wait([process.fileno() for process in workers.values()], _POLL_SECONDS)
        for name, process in workers.items():
            # Meanwhile another one may have been started under its name.
            if process.fileno() in ready and self._workers.get(name) is process:
                del self._workers[name]
                ended[name] = process.exit_code()
                self._gpus.give_back(name)
        return ended, self._sampler.collect()

    def _end_if_orphaned(self) -> None:
        """End the actor, and with it all workers, once nobody polls it."""
        while self._is_polled.wait(_ORPHANED_SECONDS):
            self._is_polled.clear()
        os._exit(1)


def build_base(host: ProcessHost, job: Job, log: Path) -> None:
    """Build a job's base on this machine, where it has to be the server's."""
    if job.base is None:
        return
    call = ProcessCall[BaseReady](host, log.stem, BaseReady, _BASE_BUILDER, job, log=log)
    own, expected = call.result(_BASE_SECONDS).digest, job.base.digest
    if own != expected:
        raise SimulationError(
            f"it builds the base {own[:12]} (model.base), and the server {expected[:12]}; install "
            "the same libraries, and put the same files on all nodes"
        )


def _expect_directory(run: Path, nonce: str) -> None:
    """Refuse a run directory that this node does not see or cannot write to."""
    flaw = "does not see"
    with suppress(OSError):
        if (run / NONCE_FILE).read_text() == nonce:
            flaw = "cannot write to"
            tempfile.TemporaryFile(dir=run).close()
            return
    raise UsageError(
        f"it {flaw} {run}, the run directory; mount that folder there, or put the run where all "
        "nodes see it (--run-dir)"
    )
