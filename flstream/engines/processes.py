"""Starting and ending of processes, through a fork server with their imports.

The first fork server of a run is started while the job file is still being read, since its imports
take longer than all else until a job begins. This module itself imports little for the same reason.
"""

from __future__ import annotations

import errno
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import psutil

if TYPE_CHECKING:
    from flstream.engines.engine import WorkerSockets
    from flstream.job import Job

SOURCE = "FLSTREAM_SOURCE"
"""Environment variable with the path of the training code, whose libraries are imported."""
PRELOAD = "FLSTREAM_PRELOAD"
"""Environment variable with the libraries that the job asks for, with commas."""
OTHER_IMPORTS = ("flstream.simulation.model_builder", "flstream.simulation.worker_process")
"""Modules of all processes of a run but the server, which does without them."""
OF_A_RUN = "FLSTREAM_OF_A_RUN"
"""Environment variable that the processes of a run have, and what they start."""
QUIET_ARROW = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Setting of Arrow's allocator, which pandas imports: no thread that gives memory back."""

FORK_SERVER = "fork-server"
"""Name of the process that a run's processes are forked from, among those whose memory is shown."""

_OF_ALL = {
    OF_A_RUN: "1",
    # Each thread that allocates would otherwise get an arena of its own, which glibc keeps.
    "MALLOC_ARENA_MAX": "2",
    # Tensors of 2 MiB and more come in huge pages, where the system has them: a received model's
    # pages are then made ready in a fraction of the time.
    "THP_MEM_ALLOC_ENABLE": "1",
}
_COMMAND = "import sys; sys.path[:] = {path}; from {module} import main; main({fd})"
_PRELOAD = "flstream.engines.preload"

# Time from asking a process to end until it is killed.
_GRACE_SECONDS = 2.0
# Time for a fork server to make its imports, and to fork a process.
_START_SECONDS = 120.0


def variables_of(job: Job) -> dict[str, str]:
    """Return the environment of a job's processes, for :meth:`ProcessHost.prepare`."""
    threads, variables = str(job.clients.threads), {}
    # A command's processes are not forked from here: what they import is their own.
    if job.train.command is None:
        variables = {SOURCE: str(job.train.source or ""), PRELOAD: ",".join(job.train.preload)}
    return {
        **variables,
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        # Without these, libraries warn in each process that training code forks.
        "TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM", "false"),
        "KMP_WARNINGS": os.environ.get("KMP_WARNINGS", "off"),
        **QUIET_ARROW,
    }


def kill_descendants(pid: int) -> None:
    """Kill the descendants of a process with SIGKILL, but not the process itself.

    Args:
        pid: Number of the process. What has left its tree, as daemons do, is not found.
    """
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                child.kill()


def _is_readable(fd: int, seconds: float) -> bool:
    """Wait until a descriptor is readable, ``seconds`` at most; return whether it is."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1e3))


class Process:
    """A process that a host has started. Any thread may use it.

    Args:
        pid: Its pid.
        pidfd: Descriptor of the process, which this object closes.
        answers: Descriptor of the socket on which its exit code comes; it closes this, too.

    Attributes:
        pid: Its pid.
        ends: The server's ends of the sockets to it, where it is a worker.
    """

    ends: WorkerSockets
    _pidfd = -1  # of a thread that stands for a process

    def __init__(self, pid: int, pidfd: int, answers: int) -> None:
        self.pid, self._pidfd, self._answers = pid, pidfd, answers

    def fileno(self) -> int:
        """Return a descriptor that is readable once the process has ended."""
        return self._pidfd

    def kill(self) -> None:
        """Kill the process and those that it has started, with SIGKILL."""
        if not self._has_ended(0.0):
            kill_descendants(self.pid)
            self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal, unless it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def exit_code(self, seconds: float = 0.0) -> int | None:
        """Wait until the process has ended, ``seconds`` at most, and return its exit code.

        Returns:
            The code, or minus the signal that killed it; None if it has not ended, or its fork
            server is gone.
        """
        from flstream.engines.fork_server import ANSWER

        if self._has_ended(seconds) and _is_readable(self._answers, _GRACE_SECONDS):
            own = socket.fromfd(self._answers, socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with own, suppress(OSError):
                # The answer stays in the socket for other threads, and the next call.
                if answer := own.recv(ANSWER.size, socket.MSG_PEEK):
                    return int(ANSWER.unpack(answer)[0])
        return None

    def _has_ended(self, seconds: float) -> bool:
        return _is_readable(self._pidfd, seconds)

    def __del__(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            os.close(self._answers)


class ProcessHost:
    """Starts processes by a fork server; as a context manager, ends them on exit.

    Args:
        variables: Environment variables of every process, beside those of all jobs.

    Attributes:
        fork_server_pid: Number of the fork server; None before it is there.
        on_started: Called with the name and the pid of each process that was started.
    """

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self._variables = dict(variables or {})
        self._is_prepared = False
        self._socket: socket.socket | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        self._turn = threading.RLock()
        self._processes: list[Process] = []
        self.fork_server_pid: int | None = None
        self.on_started: Callable[[str, int], None] = lambda *_: None

    @classmethod
    def of(cls, job: Job | None = None) -> Self:
        """Create a process host for a job, prepared unless the job is yet to be read."""
        host = cls()
        if job is not None:
            host.prepare(variables_of(job))
        return host

    @classmethod
    def forked(cls, *inherited: socket.socket) -> Self:
        """Fork a fork server from this process, which has its imports and no threads yet.

        What the other processes import beside them is imported there, once for all.

        Args:
            inherited: Sockets of this process, which are not for the others.
        """
        from flstream.engines.fork_server import serve

        host = cls()
        host._is_prepared = True
        host._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            host.fork_server_pid = os.fork()
            if not host.fork_server_pid:
                for own in (host._socket, *inherited):
                    os.close(own.detach())
                os.setpgid(0, 0)
                for name in OTHER_IMPORTS:
                    importlib.import_module(name)
                gc.freeze()  # as those of the first fork server
                serve(theirs)
        return host

    def begin(self) -> None:
        """Start the fork server ahead of time.

        It does the imports that every job needs, and waits for :meth:`prepare` to do the rest.
        """
        if self._socket is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = [folder for folder in sys.path if folder]
        command = _COMMAND.format(path=path, module=_PRELOAD, fd=theirs.fileno())
        with theirs:
            # The working directory is not on the path of `-P`: a script there with the name of a
            # standard module would be imported in its place. A process group of its own: a Ctrl-C
            # in the terminal reaches the launcher alone, which stops the others in order.
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-c", command],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_OF_ALL},
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        self._socket, self.fork_server_pid = ours, self._popen.pid
        if self._is_prepared:
            self._send_variables()

    def prepare(self, variables: Mapping[str, str]) -> None:
        """Set a job's environment variables, before or after :meth:`begin`."""
        self._variables.update(variables)
        if self._socket is not None and not self._is_prepared:
            self._send_variables()
        self._is_prepared = True

    def start(self, name: str, target: str, *args: Any) -> Process:
        """Start a process; start another fork server first if the old one has ended.

        Args:
            name: Name of the process, as multiprocessing has it there.
            target: Function that the process runs, as ``package.module:name``: the module need not
                be imported here.
            *args: Arguments of the function; must be picklable, or sockets.

        Raises:
            OSError: It cannot be started.
        """
        from flstream.engines.fork_server import CallPickler

        fd = os.memfd_create("call", os.MFD_CLOEXEC)
        with open(fd, "w+b") as file:
            pickler = CallPickler(file)
            pickler.dump((name, target, args))
            file.seek(0)
            sockets = [end.fileno() for end in pickler.sockets]
            with self._turn:
                try:
                    process = self._fork(fd, sockets)
                except (BrokenPipeError, ConnectionResetError):
                    # All that the fork server has forked has ended with it.
                    self._end_fork_server()
                    self.begin()
                    process = self._fork(fd, sockets)
                self._processes = [other for other in self._processes if not other._has_ended(0.0)]
                self._processes.append(process)
        self.on_started(name, process.pid)
        return process

    def attend(self, fd: int) -> None:
        """Return at once: processes, unlike threads, need nothing of this one."""

    def wait(self, seconds: float) -> bool:
        """Wait until every process has ended, ``seconds`` at most; return whether it has."""
        ends = time.monotonic() + seconds
        return all(
            process._has_ended(max(ends - time.monotonic(), 0.0))
            for process in list(self._processes)
        )

    def close(self) -> None:
        """End every process and the fork server. Calling it again has no effect."""
        self.end_processes()
        self._end_fork_server()

    def end_processes(self) -> None:
        """Ask every process to end, and kill those that do not."""
        for process in self._processes:
            process.send(signal.SIGTERM)
        if not self.wait(_GRACE_SECONDS):
            for process in self._processes:
                process.kill()
            self.wait(_GRACE_SECONDS)
        self._processes = []

    def __enter__(self) -> Self:
        if not self._is_prepared:
            self.prepare({})
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fork(self, call: int, sockets: Sequence[int]) -> Process:
        from flstream.engines.fork_server import ANSWER

        if self._socket is None:
            raise BrokenPipeError("there is no fork server")
        answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                socket.send_fds(self._socket, [b"f"], [call, theirs.fileno(), *sockets])
            if not _is_readable(answers.fileno(), _START_SECONDS):
                raise TimeoutError(f"the fork server did not answer within {_START_SECONDS:g} s")
            answer, descriptors, _, _ = socket.recv_fds(answers, ANSWER.size, 1)
            if not answer:
                raise BrokenPipeError("the fork server has ended")
            (pid,) = ANSWER.unpack(answer)
            if pid < 0 or not descriptors:  # which come in vain where there are too many
                number = -pid if pid < 0 else errno.EMFILE
                raise OSError(number, os.strerror(number))
        except BaseException:
            answers.close()
            raise
        os.set_inheritable(descriptors[0], False)
        return Process(pid, descriptors[0], answers.detach())

    def _end_fork_server(self) -> None:
        if self._socket is None:
            return
        assert self.fork_server_pid is not None
        self._socket.close()
        self._socket = None
        with suppress(ProcessLookupError):  # it has left no trace where SIGCHLD is ignored
            fork_server = os.pidfd_open(self.fork_server_pid)
            _is_readable(fork_server, _GRACE_SECONDS)
            os.close(fork_server)
            # The fork server has done so itself, unless it was stopped or killed.
            os.killpg(self.fork_server_pid, signal.SIGKILL)
        if self._popen is not None:
            self._popen.wait()
        else:
            os.waitpid(self.fork_server_pid, 0)
        self.fork_server_pid = self._popen = None

    def _send_variables(self) -> None:
        assert self._socket is not None
        with suppress(OSError):  # a fork server that has ended is met when a process is started
            self._socket.send(json.dumps(self._variables).encode())
