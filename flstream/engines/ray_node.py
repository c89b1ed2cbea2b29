"""The actor of a node of a Ray cluster: it starts, watches and kills the workers of a run there.

Ray calls its methods, each on some thread. If the actor ends, for whatever reason, its fork server
ends all that it has started.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from flstream.client.code import train_code
from flstream.client.worker_info import WorkerInfo
from flstream.engines.gpus import GpuDealer, visible_gpus
from flstream.engines.processes import FORK_SERVER, Process, ProcessHost
from flstream.errors import SimulationError
from flstream.job.train_section import TrainSection
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.machine import this_machine
from flstream.telemetry.memory import MemorySampler, NodeMemory

NONCE_FILE = ".nonce"
"""File of the run directory by whose content a node finds out whether it sees that directory."""

# Seconds after which a poll is answered if no worker has ended.
_POLL_SECONDS = 1.0
# Seconds without a poll after which the run is taken to be gone.
_ORPHANED_SECONDS = 15.0
# Seconds for the fork server to do its imports.
_IMPORT_SECONDS = 60.0
# Libraries whose versions decide bits, and flstream, whose messages have to agree.
_EQUAL = ("flstream", "python", "torch", "numpy")
ValueT = TypeVar("ValueT")

_WORKER = "flstream.simulation.worker_process:node_worker"


class NodeJob(NamedTuple):
    """Facts that all workers of a run share, with paths of the server's machine.

    Attributes:
        run: The run directory.
        folder: Folder of the job, of which the actor's working directory is a copy.
        nonce: Content of :data:`NONCE_FILE`.
        versions: Versions of the server's libraries.
        variables: Environment variables of every process.
        train: Training code.
        threads: Number of torch's threads.
        gpus: How many GPUs a worker gets; None leaves them as they are.
    """

    run: Path
    folder: Path
    nonce: str
    versions: Mapping[str, str]
    variables: Mapping[str, str]
    train: TrainSection
    threads: int
    gpus: int | None


class NodeFacts(NamedTuple):
    """The processor of a node, and why it cannot use the run directory; empty if it can."""

    processor: str
    flaw: str


class NodeReport(NamedTuple):
    """Exit codes of workers that have ended since the last report, by number; memory; clock."""

    ended: dict[int, int]
    memory: NodeMemory
    time: float


class NodeHost:
    """The actor. Several of its methods may run at the same time."""

    def __init__(self) -> None:
        self._host = ProcessHost()
        self._sampler = MemorySampler(keeps=True)
        self._workers: dict[int, Process] = {}
        self._is_polled = threading.Event()

    def describe(self, name: str, job: NodeJob) -> NodeFacts:
        """Get ready to start workers, and describe this machine.

        Args:
            name: Name of the node in the run.
            job: Facts that all workers share.

        Raises:
            SimulationError: Other versions are installed here.
        """
        machine, folder = this_machine(), os.getcwd()
        for library in _EQUAL:
            own, theirs = (each.get(library, "none") for each in (machine.versions, job.versions))
            if own != theirs:
                raise SimulationError(
                    f"it has {library} {own}, and the run {theirs}; install the same, since other "
                    "versions may give other bits"
                )
        if flaw := _flaw_of(job):
            return NodeFacts(machine.processor, flaw)
        self._moved = PathMover(str(job.folder), folder)
        self._common = RunDirectory(job.run), train_code(self._moved(job.train)), job.threads
        self._gpus = GpuDealer(visible_gpus(), job.gpus)
        # Ray puts its copy of the folder in front, where a file of the job would hide a module, and
        # modules of its own.
        ray = f"{os.path.dirname(sys.modules['ray'].__file__ or '')}/"
        sys.path[:] = [path for path in sys.path if path != folder and not path.startswith(ray)]
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path != folder)
        self._host.prepare(self._moved(job.variables))
        self._host.begin()
        # Its imports may take long on a cold file system, and the first worker waits for them.
        self._host.start("first", "time:sleep", 0).exit_code(_IMPORT_SECONDS)
        self._sampler.__enter__()
        self._sampler.watch(f"{name}/actor", os.getpid())
        self._sampler.watch(f"{name}/{FORK_SERVER}", self._host.fork_server_pid or 0)
        threading.Thread(target=self._end_if_orphaned, daemon=True).start()
        return NodeFacts(machine.processor, "")

    def start(self, number: int, info: WorkerInfo, address: str, keys: Mapping[str, bytes]) -> None:
        """Start a worker, which connects to the server by itself.

        Args:
            number: Number of the worker in the run.
            info: Facts about it, with paths of the server's machine.
            address: Where the server listens.
            keys: Key of each of its connections, by role.
        """
        if (gpus := self._gpus.deal(str(number))) is not None:
            info = replace(info, gpus=gpus)
        process = self._host.start(
            info.name, _WORKER, self._moved(info), *self._common, address, dict(keys)
        )
        self._sampler.watch(info.name, process.pid)
        self._workers[number] = process

    def kill(self, number: int | None) -> None:
        """Kill a worker with all that it has started, unless it has ended; or all, and the actor.

        Args:
            number: Number of the worker; None is all.
        """
        if number is None:
            os._exit(0)
        if (process := self._workers.get(number)) is not None:
            process.kill()

    def poll(self, watched: Sequence[tuple[str, int, Sequence[int]]]) -> NodeReport:
        """Report about the node, as soon as a worker ends, or after a second.

        Args:
            watched: Workers whose memory is that of these processes together: name, pid, others.
        """
        self._is_polled.set()
        for name, pid, others in watched:
            if self._sampler.watches(name):
                self._sampler.watch(name, pid, others)
        workers = dict(self._workers)
        wait([process.fileno() for process in workers.values()], _POLL_SECONDS)
        ended = {}
        for number, process in workers.items():
            if (code := process.exit_code()) is not None:
                ended[number] = code
                del self._workers[number]
                self._gpus.give_back(str(number))
        return NodeReport(ended, self._sampler.collect(), time.time())

    def _end_if_orphaned(self) -> None:
        while self._is_polled.wait(_ORPHANED_SECONDS):
            self._is_polled.clear()
        os._exit(1)


class PathMover:
    """Moves paths from the job's folder to a copy of it, wherever they stand in a value.

    A path that is not in the copy stays, as this node may see it all the same.

    Args:
        folder: The job's folder.
        copy: The copy.
    """

    def __init__(self, folder: str, copy: str) -> None:
        self._folder, self._copy = folder, copy
        # A path within a text, such as --data=/job/data, as far as one can be told.
        self._within = re.compile(rf"(?<![\w.~/-]){re.escape(folder)}(?:/[^\s:;,'\"=]*)?(?![\w.-])")

    def __call__(self, value: ValueT) -> ValueT:
        """Return a copy of a value, of whatever picklable type, with the paths moved."""
        buffer = io.BytesIO()
        pickler = pickle.Pickler(buffer)
        pickler.persistent_id = self._moved  # type: ignore[method-assign]
        pickler.dump(value)
        buffer.seek(0)
        unpickler = pickle.Unpickler(buffer)
        unpickler.persistent_load = lambda moved: moved  # type: ignore[method-assign]
        result: ValueT = unpickler.load()
        return result

    def _moved(self, value: object) -> str | Path | None:
        """Return what takes the place of a value; None keeps it."""
        if isinstance(value, Path):
            return Path(self._path(str(value)))
        if isinstance(value, str) and self._folder in value:
            return self._within.sub(lambda path: self._path(path[0]), self._path(value))
        return None

    def _path(self, path: str) -> str:
        moved = self._copy + path.removeprefix(self._folder)
        is_inside = path == self._folder or path.startswith(f"{self._folder}/")
        return moved if is_inside and os.path.lexists(moved) else path


def _flaw_of(job: NodeJob) -> str:
    try:
        if (job.run / NONCE_FILE).read_text() != job.nonce:
            return f"has another folder at {job.run}"
        tempfile.TemporaryFile(dir=job.run).close()
    except FileNotFoundError:
        return f"does not see {job.run}"
    except OSError as error:
        return f"cannot write to {job.run}: {error.strerror}"
    return ""
