"""The engine of one process: workers are threads of it, and connected by socket pairs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from flstream.engines.engine import StartedWorker, WorkerSockets, worker_socket_pairs


class InlineEngine:
    """Starts workers as threads of this process. Their host ends them with the run.

    Args:
        start: Starts a worker, given its name and its ends of the sockets, and returns its number.
        end: Ends a worker, given its number.

    Attributes:
        room: None, as the job says how many workers there are.
        causes: Nothing, as no worker ends before its time.
    """

    def __init__(
        self, start: Callable[[str, WorkerSockets], int], end: Callable[[int], None]
    ) -> None:
        self._start = start
        self._end = end
        self.room: int | None = None
        self.causes: Mapping[str, str] = {}

    def start(self, name: str) -> StartedWorker:
        """Start a worker's thread, and connect it by socket pairs."""
        ours, theirs = worker_socket_pairs()
        try:
            return StartedWorker(os.getpid(), ours, self._start(name, theirs))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    def watch(self, name: str, pid: int, others: Sequence[int]) -> None:
        """Do nothing: the memory of workers is not told apart."""

    def kill(self, number: int) -> None:
        """End a worker's thread at its next line of Python, or where it waits."""
        self._end(number)

    def await_end(self, number: int, seconds: float) -> None:
        """Do nothing: whoever waits may have what the thread needs in order to end."""

    def exit_code(self, name: str, seconds: float) -> int | None:
        """Return None: threads have no exit code."""
        return None

    def close(self, seconds: float = 0.0) -> None:
        """Do nothing: the host ends the threads."""
