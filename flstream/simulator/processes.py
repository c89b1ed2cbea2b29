"""The one place that starts and ends processes."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.util
import os
import resource
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import connection, forkserver
from multiprocessing.context import ForkServerProcess
from typing import Any, Self

PRELOAD = "flstream.simulator.preload"
SAFE_PATH = "PYTHONSAFEPATH"
NEEDS = "FLSTREAM_NEEDS"
"""The variable that names the pipe on which the fork server is told what the job needs."""

# How long a process may take to end once it was asked to, before it is killed.
_GRACE_SECONDS = 2.0


class ProcessHost:
    """Starts processes from a fork server, and leaves none behind.

    Use it as a context manager.

    Args:
        environment: variables for every process, from its first instruction on.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._is_prepared = False
        self._needs: _Needs | None = None
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([PRELOAD])
        self._processes: dict[str, ForkServerProcess] = {}
        self._replaced: list[ForkServerProcess] = []

    def start(self, name: str, target: Callable[..., None], *args: Any) -> int:
        """Start a process and return its pid; it takes the place of one of the same name.

        ``target`` and ``args`` must be picklable.
        """
        # Not a daemon: a training script may start processes of its own, such as data loaders.
        process = self._context.Process(target=target, args=args, name=name, daemon=False)
        with _without_main_module():
            process.start()
        if name in self._processes:
            self._replaced.append(self._processes[name])
            self._forget_ended()
        self._processes[name] = process
        assert process.pid is not None
        return process.pid

    def fork_server_pid(self) -> int | None:
        """The pid of the fork server itself."""
        pid: int | None = getattr(forkserver._forkserver, "_forkserver_pid", None)
        return pid

    def wait_for(self, name: str, seconds: float) -> None:
        """Wait until a process has ended."""
        self._processes[name].join(seconds)

    def exit_codes(self) -> Mapping[str, int | None]:
        """How processes ended, as :attr:`multiprocessing.Process.exitcode` has it."""
        return {name: process.exitcode for name, process in self._processes.items()}

    def wait_for_any(self, seconds: float) -> None:
        """Wait until one more process has ended."""
        living = [process for process in self._processes.values() if process.exitcode is None]
        connection.wait([process.sentinel for process in living], seconds)

    def wait(self, seconds: float) -> bool:
        """Wait until every process has ended; False if some live on after ``seconds``."""
        ends = time.monotonic() + seconds
        for process in self._all():
            process.join(max(ends - time.monotonic(), 0.0))
        return all(process.exitcode is not None for process in self._all())

    def _forget_ended(self) -> None:
        """Give back what ended processes hold here, as there may be many of them."""
        ended = [process for process in self._replaced if process.exitcode is not None]
        self._replaced = [process for process in self._replaced if process.exitcode is None]
        for process in ended:
            process.close()

    def _all(self) -> list[ForkServerProcess]:
        return [*self._processes.values(), *self._replaced]

    def begin(self) -> None:
        """Have the fork server begin already. If it cannot be started, entering says why.

        It goes only half of its way before it is known what the job needs: see :meth:`prepare`.
        """
        with suppress(OSError):
            if not self._is_prepared and self._needs is None:
                self._needs = _Needs()
            self._ensure_running()

    def prepare(self, variables: Mapping[str, str]) -> None:
        """Say what the job needs, before the fork server has begun or after.

        Args:
            variables: for every process.
        """
        self._is_prepared = True
        self._environment.update(variables)
        if self._needs is not None:
            self._needs.tell(variables)

    def close(self) -> None:
        """End every process, the fork server, too. It may be called again."""
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
        _raise_file_limit()
        # The fork server is a `python -c`, for which the working directory comes first on the path:
        # a script there named like a module of Python's would be run instead of it.
        variables = {SAFE_PATH: "flstream", **self._environment}
        if self._needs is not None and not self._is_prepared:
            variables[NEEDS] = self._needs.path
        with _environment(variables), _without_main_module():
            forkserver.ensure_running()

    def _stop_fork_server(self) -> None:
        # It leads a process group of its own, in which everything a training script may have
        # started and left behind is, too.
        pid = self.fork_server_pid()
        if pid is None:
            return
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            os.kill(pid, signal.SIGKILL)  # it had not come as far as to make the group
        # The standard library starts another one when asked to, once it knows this one is gone.
        # It has no public way to be told; its own tests use this one.
        forkserver._forkserver._stop()  # type: ignore[attr-defined]


class _Needs:
    """A named pipe on which a fork server that has begun is told what the job needs."""

    def __init__(self) -> None:
        # Where the fork server's socket is, too; it is taken away when this process ends.
        folder = multiprocessing.util.get_temp_dir()
        self.path = os.path.join(folder, f"needs-{uuid.uuid4().hex}")
        os.mkfifo(self.path, 0o600)
        # For both, so that it neither waits for a reader nor lets one that opens it see an end.
        self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)

    def tell(self, variables: Mapping[str, str]) -> None:
        os.write(self._fd, json.dumps(dict(variables)).encode() + b"\n")

    def close(self) -> None:
        os.close(self._fd)
        os.unlink(self.path)


def _raise_file_limit() -> None:
    # Every site costs this process a dozen descriptors while the processes start, and the server,
    # whose limit is from here, some as well. Many systems allow 1,024 unless one asks for more.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


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
def _without_main_module() -> Iterator[None]:
    """Hide where this process's main module came from.

    A child would run that module again, to find what was pickled from it. Nothing is, and the
    command line's imports would be charged to the memory of every site.
    """
    main = sys.modules["__main__"]
    names = ("__file__", "__spec__")
    hidden = {name: main.__dict__.pop(name) for name in names if name in main.__dict__}
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)
