"""The engine of this machine: workers are forked, or threads, and connected by socket pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flstream.engines.engine import StartedWorker, WorkerSockets, worker_socket_pairs
from flstream.telemetry.memory import MemorySampler


class LocalEngine:
    """Starts workers on this machine. Its process host ends them, and the server kills them.

    Args:
        start: Starts a worker, given its name and its ends of the sockets, and returns the pid of
            its process and 0; or 0 and its number, where it is a thread of this process.
        sampler: Sampler of the memory of this machine's processes.
        exit_code: Returns the exit code of a worker's process, as :meth:`exit_code` does.
        kill: Ends a worker that is a thread, given its number; None where none is.
    """

    def __init__(
        self,
        start: Callable[[str, WorkerSockets], tuple[int, int]],
        sampler: MemorySampler,
        exit_code: Callable[[str, float], int | None],
        kill: Callable[[int], None] | None = None,
    ) -> None:
        self._start = start
        self._sampler = sampler
        self._exit_code = exit_code
        self._kill = kill

    def start(self, name: str) -> StartedWorker:
        """Fork a worker, and connect it by socket pairs."""
        ours, theirs = worker_socket_pairs()
        try:
            pid, number = self._start(name, theirs)
            self._sampler.watch(name, pid)
            return StartedWorker(pid, ours, number)
        except BaseException:
            ours.close()
            raise
        finally:
            # The server sees a socket close only if no copy of the worker's end is open here.
            theirs.close()

    def watch(self, name: str, pid: int, others: Sequence[int]) -> None:
        """Sample the memory of a worker's processes together."""
        if self._sampler.watches(name):
            self._sampler.watch(name, pid, others)

    def kill(self, number: int) -> None:
        """End a thread; the server kills processes of its own machine itself."""
        if self._kill is not None:
            self._kill(number)

    def await_end(self, number: int, seconds: float) -> None:
        """Return at once: the server itself waits for processes of its machine."""

    def exit_code(self, name: str, seconds: float) -> int | None:
        """Return the exit code of a worker's last process: see :class:`Engine`."""
        return self._exit_code(name, seconds)

    @property
    def causes(self) -> Mapping[str, str]:
        """Nothing: the process host knows the exit codes of this machine's processes."""
        return {}

    def close(self, seconds: float = 0.0) -> None:
        """Return at once: the process host ends the workers."""
