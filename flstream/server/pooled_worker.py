"""One worker of the pool: its process is started, made ready, given tasks, killed and replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from signal import SIGKILL
from time import monotonic
from typing import Protocol

from flstream.errors import (
    AbortedError,
    ChannelClosedError,
    CheckpointError,
    DeadlineError,
    FlstreamError,
    SimulationError,
    WorkerLostError,
)
from flstream.server.collector import SiteLost
from flstream.server.site_queue import SiteBatch, SiteQueue
from flstream.server.worker_handle import WorkerHandle
from flstream.telemetry.events import Emit, Warned
from flstream.telemetry.memory_group import LimitKills
from flstream.text import how_ended
from flstream.worker.messages import Failed, Stop

# Seconds within which a process whose sockets have ended is expected to have ended, too.
_END_SECONDS = 2.0
# Processes in a row that may be lost before they took a task; then their sites have failed.
_MOST_LOST = 3
# Failed starts in a row after which a shared worker is abandoned: the next one would fail, too.
_MOST_FAILED_STARTS = 3


Callback = Callable[[], object]
"""Function that takes in what has happened, on the thread that makes decisions."""

Put = Callable[[Callback], None]
"""Function that queues a callback for the thread that makes decisions."""


class ReportCallback(Protocol):
    """Function that queues a callback of a task, and notes which sites it settles."""

    def __call__(self, callback: Callback, *settled: str) -> None:
        """Queue a callback."""
        ...


class PoolTask(Protocol):
    """A task that workers perform for batches of sites."""

    def perform(self, worker: WorkerHandle, sites: SiteBatch, report: ReportCallback) -> None:
        """Perform it for a batch of sites on a worker, and report each site's result."""
        ...

    def lose(self, lost: SiteLost) -> None:
        """Record that a site has failed with its worker, on the thread that makes decisions."""
        ...


class PooledWorker:
    """A worker of the pool, and the processes that are it, one after another.

    One thread at a time uses it, which holds ``turn`` during a task; any thread may call
    :meth:`end`.

    Attributes:
        name: Name of the worker.
        own: Whether it is a site's own.
        handle: The current process; None if it is yet to be started.
        abandoned: Why the worker is no longer replaced, and the others do its work; empty if it is.
        turn: Held during a task.
    """

    def __init__(
        self,
        name: str,
        own: bool,
        start: Callable[[str], WorkerHandle],
        ready_seconds: float,
        emit: Emit,
        remedy: str,
        gives_again: bool,
    ) -> None:
        self.name = name
        self.own = own
        self.handle: WorkerHandle | None = None
        self.abandoned = ""
        self.turn = threading.Lock()
        self._start = start
        self._ready_seconds = ready_seconds
        self._emit = emit
        self._remedy = remedy
        self._gives_again = gives_again
        self._kills = LimitKills()
        # Processes in a row that did not become ready, and that were lost before they took a task.
        self._failed_starts = 0
        self._lost_in_a_row = 0
        # Whether it was ended, and is not to be started until it is opened.
        self._is_ending = False
        self._lock = threading.Lock()  # guards the process that another thread may kill

    def open(self) -> None:
        """Allow the worker to be started again after :meth:`end`."""
        self._is_ending = False

    def prepare(self, put: Put, lose: Callable[[SiteLost], None]) -> None:
        """Make the worker ready for its first task; start it anew as long as that may help."""
        while not self.abandoned and (self.handle is None or not self.handle.ready):
            try:
                self.ready_handle()
            except WorkerLostError as lost:
                error = self.lose(lost)
                if not self.own:
                    self._count_failed_start(error)
                elif self._is_repeatable(error):
                    self._note_loss(error)
                else:
                    put(partial(lose, SiteLost.by(self.name, error)))
                    return

    def do(self, queue: SiteQueue, batch: SiteBatch, task: PoolTask, put: Put) -> None:
        """Perform a task; if the process is lost, fail its sites or queue them again."""
        settled: set[str] = set()

        def report(callback: Callback, *sites: str) -> None:
            settled.update(sites)
            put(callback)

        is_ready = False
        try:
            handle = self.ready_handle()
            is_ready = True
            task.perform(handle, batch, report)
            self._lost_in_a_row = 0
        except (AbortedError, CheckpointError, SimulationError):
            raise  # not the worker's failure
        except FlstreamError as failure:
            error = self.lose(failure)
            unsettled = [site for site in batch if site not in settled]
            if not is_ready and not self.own:
                # The sites have not failed: another worker takes them.
                queue.give_back(unsettled)
                if not self._is_ending:
                    self._count_failed_start(error)
            elif self._is_repeatable(error):
                self._note_loss(error)
                queue.give_back(unsettled)
            else:
                if is_ready:
                    self._lost_in_a_row = 0
                for site in _culprits(queue, batch, unsettled, error):
                    put(partial(task.lose, SiteLost.by(site, error)))

    def ready_handle(self) -> WorkerHandle:
        """Return the process, ready for a task; start one if there is none that is fit."""
        self._kills.renew()
        if self.handle is not None:
            try:
                self.handle.expect_fit()
            except WorkerLostError as lost:
                self._emit(Warned(message=f"{self.name} was started again: {lost}"))
                self.drop()
        if self.handle is None:
            started = self._start(self.name)
            with self._lock:
                self.handle = started
        with self._lock:
            handle = self.handle
            assert handle is not None
            if self._is_ending:
                handle.kill()
                raise WorkerLostError("it is no longer wanted")
        deadline = monotonic() + self._ready_seconds
        while not handle.ready:
            message = handle.next_message(deadline, "call init()")
            if isinstance(message, Failed):
                has_raised = not message.has_died
                raise WorkerLostError(
                    message.reason, has_raised=has_raised, exit_code=message.exit_code
                )
        self._failed_starts = 0
        return handle

    def stop(self, seconds: float) -> None:
        """Tell the process that the run is over, and wait until it has ended."""
        handle, self.handle = self.handle, None
        if handle is None:
            return
        # The launcher kills a process that does not end by itself; the model is final.
        with suppress(FlstreamError):
            handle.control.send(Stop())
            handle.await_end(seconds)
        handle.close()

    def end(self) -> WorkerHandle | None:
        """Kill the process, even while it is being started; safe to call from any thread.

        Returns:
            The process that was killed; None if there was none.
        """
        with self._lock:
            self._is_ending = True
            if self.handle is not None:
                self.handle.kill()
            return self.handle

    def lose(self, error: FlstreamError) -> FlstreamError:
        """Drop a process that cannot be used any longer.

        Returns:
            The error; or if the process has ended by itself, one that says how.
        """
        closed = isinstance(error.__cause__ or error, ChannelClosedError)
        handle = self.handle if closed and not self._is_ending else None
        code = None if handle is None else handle.exit_code(_END_SECONDS)
        if handle is None or code is None:
            self.drop()
            return error
        failed = handle.failure()
        self.drop()
        if failed is not None:
            lost = WorkerLostError(failed.reason, exit_code=failed.exit_code)
        else:
            reason = f"{self.name} {how_ended(code)}"
            if code == -SIGKILL:
                reason += self._kills.clause(self._remedy)
            lost = WorkerLostError(reason, exit_code=code)
        if isinstance(error, WorkerLostError):
            lost.site, lost.is_acknowledged = error.site, error.is_acknowledged
            lost.has_raised = error.has_raised
        return lost

    def drop(self) -> None:
        """Kill the current process, if there is one, and close its channels."""
        with self._lock:
            handle, self.handle = self.handle, None
        if handle is not None:
            handle.kill()
            handle.close()

    def _is_repeatable(self, error: FlstreamError) -> bool:
        """Whether another process can do a task: that of one lost before it had taken it, or any.

        Where time is simulated, the end of a process is no fact of its site.
        """
        return (
            isinstance(error, WorkerLostError)
            and (self._gives_again or not error.is_acknowledged)
            and not error.has_raised
            and not isinstance(error.__cause__, DeadlineError)
            and not self._is_ending
            and self._lost_in_a_row < _MOST_LOST - 1
        )

    def _note_loss(self, error: FlstreamError) -> None:
        self._lost_in_a_row += 1
        self._emit(Warned(message=f"{self.name} was started again: {error}"))

    def _count_failed_start(self, error: FlstreamError) -> None:
        """Count a failed start, and abandon the worker after :data:`_MOST_FAILED_STARTS`."""
        self._failed_starts += 1
        if self._failed_starts < _MOST_FAILED_STARTS:
            return
        self.abandoned = (
            f"{self.name} did not get ready {self._failed_starts} times in a row: {error}; "
            f"its log is {self.name}.log"
        )


def _culprits(
    queue: SiteQueue, batch: SiteBatch, unsettled: Sequence[str], error: FlstreamError
) -> Sequence[str]:
    """The sites that ended their worker; if they are unknown, all are put back one by one."""
    culprit = error.site if isinstance(error, WorkerLostError) else None
    if len(batch) == 1:
        return unsettled
    if culprit is not None and culprit in unsettled and isinstance(error.__cause__, DeadlineError):
        queue.give_back([site for site in unsettled if site != culprit])
        return [culprit]
    for site in reversed(unsettled):
        queue.give_back([site])
    return []
