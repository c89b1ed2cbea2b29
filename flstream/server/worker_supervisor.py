"""Supervision of one worker: it is started, made ready, killed and replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

from flstream.errors import ChannelClosedError, FlstreamError, WorkerLostError
from flstream.server.worker_handle import WorkerHandle
from flstream.server.worker_monitor import WorkerMonitor
from flstream.text import how_ended
from flstream.worker.messages import Failed

# Seconds within which a process whose sockets have ended is expected to have ended, too.
_END_SECONDS = 2.0
# Workers in a row that may be lost before they acknowledged a task; then their sites have failed.
_MOST_LOST = 3


class WorkerSupervisor:
    """Supervisor of one worker and its replacements, which have the same name.

    One thread at a time uses it; any thread may call :meth:`end`.

    Args:
        name: Name of the worker.
        own: Whether it is a site's own worker.
        start: Starts a process of a name.
        monitor: Monitor that receives the worker's messages.
        ready_seconds: Seconds that a new process may take to become ready.

    Attributes:
        name: Name of the worker.
        own: Whether it is a site's own worker.
        worker: The current process; None if it is yet to be started.
        failed_starts: Number of processes in a row that did not become ready.
        lost_in_a_row: Number of processes in a row that were lost before they acknowledged a task.
        is_abandoned: Whether the worker is no longer replaced.
        is_ending: Whether it was ended, and is not to be started until :meth:`open` is called.
        turn: Held during a task: one thread at a time gives the worker some.
    """

    def __init__(
        self,
        name: str,
        own: bool,
        start: Callable[[str], WorkerHandle],
        monitor: WorkerMonitor,
        ready_seconds: float,
    ) -> None:
        self.name = name
        self.own = own
        self.worker: WorkerHandle | None = None
        self.failed_starts = 0
        self.lost_in_a_row = 0
        self.is_abandoned = False
        self._start = start
        self._monitor = monitor
        self._ready_seconds = ready_seconds
        self.is_ending = False
        self.turn = threading.Lock()
        self._lock = threading.Lock()  # guards the process that another thread may kill

    def may_lose_another(self) -> bool:
        """Whether one more process may be lost before an acknowledgement without failing a site."""
        return self.lost_in_a_row < _MOST_LOST - 1

    def open(self) -> None:
        """Allow the worker to be started again after :meth:`end`."""
        self.is_ending = False

    def ready_worker(self) -> WorkerHandle:
        """Return the worker, ready for a task; start a process if there is none that is fit.

        Raises:
            WorkerLostError: The process did not become ready.
            AbortedError: The run is being stopped.
        """
        if self.worker is not None and not self._monitor.is_fit(self.worker):
            self.drop()
        if self.worker is None:
            started = self._start(self.name)
            with self._lock:
                self.worker = started
        with self._lock:
            worker = self.worker
            assert worker is not None
            if self.is_ending:
                worker.kill()
                raise WorkerLostError("it is no longer wanted")
        deadline = monotonic() + self._ready_seconds
        while not worker.ready:
            message = self._monitor.next_message(worker, deadline, "call init()")
            if isinstance(message, Failed):
                has_raised = not message.has_died
                raise WorkerLostError(
                    message.reason, has_raised=has_raised, exit_code=message.exit_code
                )
        self.failed_starts = 0
        return worker

    def end(self) -> WorkerHandle | None:
        """Kill the worker, even while it is being started; safe to call from any thread.

        Returns:
            The process that was killed; None if there was none.
        """
        with self._lock:
            self.is_ending = True
            if self.worker is not None:
                self.worker.kill()
            return self.worker

    def lose(self, error: FlstreamError) -> FlstreamError:
        """Drop a process that cannot be used any longer.

        Args:
            error: Error that says why.

        Returns:
            The error; or if the process has ended by itself, one that says how.
        """
        closed = isinstance(error.__cause__ or error, ChannelClosedError)
        worker = self.worker if closed and not self.is_ending else None
        code = None if worker is None else worker.exit_code(_END_SECONDS)
        if worker is None or code is None:
            self.drop()
            return error
        failed = self._monitor.failure(worker)
        self.drop()
        lost = WorkerLostError(f"{self.name} {how_ended(code)}", exit_code=code)
        if failed is not None:
            lost = WorkerLostError(failed.reason, exit_code=failed.exit_code)
        if isinstance(error, WorkerLostError):
            lost.site, lost.is_acknowledged = error.site, error.is_acknowledged
            lost.has_raised = error.has_raised
        return lost

    def drop(self) -> None:
        """Kill the current process, if there is one, and close its channels."""
        with self._lock:
            worker, self.worker = self.worker, None
        if worker is not None:
            worker.kill()
            worker.close()
