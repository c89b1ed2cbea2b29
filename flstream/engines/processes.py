"""Starting and ending of a run's processes; a site's own command is started by its worker."""

from __future__ import annotations

import json
import multiprocessing
import os
import pkgutil
import resource
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.context import ForkServerProcess
from typing import Any, Self

from flstream.engines.sockets_folder import FOLDER, sockets_folder

PRELOAD = "flstream.simulation.preload"
SAFE_PATH = "PYTHONSAFEPATH"
NEEDS = "FLSTREAM_NEEDS"
"""Environment variable with the path of the pipe that sends a job's needs to the fork server."""
OF_A_RUN = "FLSTREAM_OF_A_RUN"
"""Environment variable that the processes of a run have, and what they start."""

FORK_SERVER = "fork-server"
"""Name of the process that a run's processes are forked from, among those whose memory is shown."""

# Time from asking a process to end until it is killed.
_GRACE_SECONDS = 2.0


class ProcessHost:
    """Starts processes from a fork server; as a context manager, ends them on exit.

    Args:
        environment: Environment variables of every process, set before its first instruction.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._is_prepared = False
        self._needs: _Needs | None = None
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([PRELOAD])
        self._processes: dict[str, ForkServerProcess] = {}
        self._replaced: list[ForkServerProcess] = []
        # The exit code of a process can be read once, by one thread.
        self._reading = threading.RLock()

    def start(self, name: str, target: str, *args: Any) -> int:
        """Start a process.

        Args:
            name: Name of the process; it replaces an earlier process of that name.
            target: Function that the process runs, as ``package.module:name``: the module need not
                be imported here.
            *args: Arguments of the function; must be picklable.

        Returns:
            The pid of the process.
        """
        # Not a daemon: a training script may start processes of its own, such as data loaders.
        process = self._context.Process(target=_call, args=(target, *args), name=name, daemon=False)
        with _without_main_module():
            process.start()
        if name in self._processes:
            self._replaced.append(self._processes[name])
            self._forget_ended()
        self._processes[name] = process
        assert process.pid is not None
        return process.pid

    def fork_server_pid(self) -> int | None:
        """Return the pid of the fork server; None if it is not running."""
        pid: int | None = getattr(forkserver._forkserver, "_forkserver_pid", None)
        return pid

    def attend(self, fd: int) -> None:
        """Return at once: unlike threads, processes want nothing of this one while it waits."""

    def exit_code(self, name: str, seconds: float) -> int | None:
        """Wait until a process has ended, for at most ``seconds``, and return its exit code.

        Returns:
            The code, as :attr:`multiprocessing.Process.exitcode`; None if it has not ended, or
            there is no such process.
        """
        with self._reading:
            process = self._processes.get(name)
            if process is None:
                return None
            process.join(seconds)
            return process.exitcode

    def exit_codes(self) -> Mapping[str, int | None]:
        """Return exit codes by process name, as :attr:`multiprocessing.Process.exitcode`."""
        with self._reading:
            return {name: process.exitcode for name, process in self._processes.items()}

    def sentinels(self) -> list[int]:
        """Return descriptors that become readable when a process ends, one for each."""
        return [process.sentinel for process in self._processes.values()]

    def take_ended(self) -> Mapping[str, int]:
        """Return exit codes of the processes that have ended, by name, and forget them."""
        codes = {
            name: code
            for name, process in self._processes.items()
            if (code := process.exitcode) is not None
        }
        for name in codes:
            self._processes.pop(name).close()
        return codes

    def wait_for_any(self, seconds: float) -> None:
        """Wait until one of the live processes has ended, for at most ``seconds``."""
        living = [process for process in self._processes.values() if process.exitcode is None]
        connection.wait([process.sentinel for process in living], seconds)

    def wait(self, seconds: float) -> bool:
        """Wait until every process has ended.

        Args:
            seconds: Maximum time to wait.

        Returns:
            Whether all of them have ended.
        """
        ends = time.monotonic() + seconds
        for process in self._all():
            process.join(max(ends - time.monotonic(), 0.0))
        return all(process.exitcode is not None for process in self._all())

    def _forget_ended(self) -> None:
        """Release the descriptors held for replaced processes that have ended."""
        ended = [process for process in self._replaced if process.exitcode is not None]
        self._replaced = [process for process in self._replaced if process.exitcode is None]
        for process in ended:
            process.close()

    def _all(self) -> list[ForkServerProcess]:
        return [*self._processes.values(), *self._replaced]

    def begin(self) -> None:
        """Start the fork server ahead of time.

        It does the imports that every job needs, and waits for :meth:`prepare` to do the rest. If
        it cannot be started, entering the context raises the error.

        Raises:
            UsageError: No temporary folder can be used.
        """
        with suppress(OSError):
            if not self._is_prepared and self._needs is None:
                self._needs = _Needs()
            self._ensure_running()

    def prepare(self, variables: Mapping[str, str]) -> None:
        """Set a job's environment variables, before or after :meth:`begin`.

        Args:
            variables: Environment variables of every process.
        """
        self._is_prepared = True
        self._environment.update(variables)
        if self._needs is not None:
            self._needs.send(variables)

    def close(self) -> None:
        """End every process and the fork server. Calling it again has no effect."""
        living = [process for process in self._all() if process.is_alive()]
        for process in living:
            process.terminate()
        if not self.wait(_GRACE_SECONDS):
            for process in living:
                process.kill()
            self.wait(_GRACE_SECONDS)
        for process in self._all():
            if process.exitcode is not None:
                process.close()
        self._processes, self._replaced = {}, []
        self._stop_fork_server()
        if self._needs is not None:
            self._needs.close()
            self._needs = None

    def __enter__(self) -> Self:
        if not self._is_prepared:
            self.prepare({})
        self._ensure_running()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ensure_running(self) -> None:
        # Every site costs this process a dozen descriptors while the processes start, and some in
        # the server, which inherits this limit. The soft limit of many systems is 1,024.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        # The fork server is a `python -c`, for which the working directory comes first on the path:
        # a script there with the name of a standard module would be imported in its place.
        variables = {SAFE_PATH: "flstream", OF_A_RUN: "1", **self._environment}
        variables[FOLDER] = sockets_folder()
        if self._needs is not None and not self._is_prepared:
            variables[NEEDS] = self._needs.path
        with _environment(variables), _without_main_module(), _interrupts_blocked():
            forkserver.ensure_running()

    def _stop_fork_server(self) -> None:
        # The fork server leads a process group of its own, which also has every process that a
        # training script started and left behind.
        pid = self.fork_server_pid()
        if pid is None:
            return
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            os.kill(pid, signal.SIGKILL)  # it had not made its group yet
        # Resets the standard library's record of the fork server, so that the next host can start
        # another one. There is no public function for this; the library's own tests use this one.
        forkserver._forkserver._stop()  # type: ignore[attr-defined]


class _Needs:
    """A named pipe that carries a job's environment variables to a running fork server."""

    def __init__(self) -> None:
        # The folder also has the fork server's socket; it is removed when this process ends.
        self.path = os.path.join(sockets_folder(), f"needs-{uuid.uuid4().hex}")
        os.mkfifo(self.path, 0o600)
        # Opened for reading and writing: opening does not wait for a reader, and a reader does not
        # see an end of file before the variables are written.
        self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)

    def send(self, variables: Mapping[str, str]) -> None:
        os.write(self._fd, json.dumps(dict(variables)).encode() + b"\n")

    def close(self) -> None:
        os.close(self._fd)
        os.unlink(self.path)


def _call(target: str, *args: Any) -> None:
    pkgutil.resolve_name(target)(*args)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Hold Ctrl-C back, from the fork server too, until that has left this process's group."""
    resource_tracker.ensure_running()  # before, since that lets Ctrl-C through afterwards
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Hide the origin of this process's main module from multiprocessing.

    A child would import that module again to unpickle what it defines. Nothing pickled is defined
    there, and the command line's imports would add to the memory of every site.
    """
    main = sys.modules["__main__"]
    names = ("__file__", "__spec__")
    hidden = {name: main.__dict__.pop(name) for name in names if name in main.__dict__}
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)
