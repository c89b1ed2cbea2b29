"""Events of the worker pool, of which many are messages that workers send at any time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import NamedTuple, Protocol

from flstream.errors import (
    AbortedError,
    DeadlineError,
    FlstreamError,
    StreamingError,
    WorkerLostError,
)
from flstream.server.site_queue import SiteBatch
from flstream.server.worker_handle import WorkerHandle
from flstream.transport.channel import AbortSignal
from flstream.worker.messages import AtAnyTime, Failed, FromWorker, Goodbye, Ready

TIMEOUT_KEY = "clients.round_timeout, or a timeout of its workflow"
"""The key that says how long a task may take, unless another one does."""

# Seconds that a worker whose code has failed may take to end.
_END_SECONDS = 5.0


class SiteLost(NamedTuple):
    """A site's failure in a task.

    Attributes:
        site: Name of the site.
        reason: Clause that says why it failed.
        exit_code: Exit code of its process if that ended, or minus the signal that killed it.
    """

    site: str
    reason: str
    exit_code: int | None = None

    @classmethod
    def by(cls, site: str, error: FlstreamError) -> SiteLost:
        """Describe the failure of a site by the error that it has caused."""
        code = error.exit_code if isinstance(error, WorkerLostError) else None
        return cls(site, str(error), code)


class WorkerAbandoned(NamedTuple):
    """A shared worker that is no longer replaced; the other workers do its work.

    Attributes:
        worker: Name of the worker.
        reason: Clause that says why.
    """

    worker: str
    reason: str


PoolEvent = object
"""A worker's message, the loss of a worker or of a site, or a task's result."""


class Report(Protocol):
    """Function that passes an event to the thread that iterates over the pool's events."""

    def __call__(self, event: PoolEvent, *settled: str) -> None:
        """Report an event.

        Args:
            event: The event.
            settled: Sites whose part in the task it settles.
        """
        ...


Perform = Callable[[WorkerHandle, SiteBatch, Report], None]
"""Function that executes a task for a batch of sites on a worker, and reports each site's result.

It raises a :class:`~flstream.errors.FlstreamError` if the worker cannot be used any longer."""


class WorkerMessage(NamedTuple):
    """A worker's message of a kind that may arrive at any time.

    Attributes:
        worker: Name of the worker.
        message: The message.
    """

    worker: str
    message: AtAnyTime


class WorkerReplaced(NamedTuple):
    """A worker that was lost without failing a site, and that is replaced.

    Attributes:
        worker: Name of the worker.
        reason: Clause that says why it was lost.
    """

    worker: str
    reason: str


class WorkerMonitor:
    """Receives workers' messages; each worker may be used by another thread.

    Args:
        notify: Function that takes the messages that may arrive at any time, and the replacements.
        abort: Signal that stops the run.
        has_deadlines: Whether workers have deadlines.
    """

    def __init__(
        self,
        notify: Callable[[WorkerMessage | WorkerReplaced], None],
        abort: AbortSignal,
        *,
        has_deadlines: bool = True,
    ) -> None:
        self._notify = notify
        self._abort = abort
        self._has_deadlines = has_deadlines

    def is_fit(self, worker: WorkerHandle) -> bool:
        """Whether an idle worker can be given a task; reads the messages that it sent meanwhile.

        Raises:
            AbortedError: The run is being stopped.
        """
        try:
            while worker.control.has_input():
                message = self._take(worker, _END_SECONDS)
                if isinstance(message, Failed):
                    # It failed after it had answered, so its answer counts.
                    self.await_goodbye(worker, _END_SECONDS)
                    raise WorkerLostError(message.reason)
            if not worker.is_whole:  # and has not said why
                raise WorkerLostError("one of its connections has ended")
        except AbortedError:
            raise
        except FlstreamError as error:
            self._notify(WorkerReplaced(worker.name, str(error)))
            return False
        return True

    def next_message(
        self, worker: WorkerHandle, deadline: float, task: str, key: str = TIMEOUT_KEY
    ) -> FromWorker:
        """Wait for a worker's next message, and pass on those that may arrive at any time.

        Args:
            worker: The worker.
            deadline: Deadline in seconds, on the clock of ``time.monotonic()``.
            task: Verb phrase for the error's message: what the worker has to do by the deadline.
            key: Key of the job file that sets the deadline, for the message too.

        Raises:
            WorkerLostError: The worker ended, died or missed the deadline.
            AbortedError: The run is being stopped.
        """
        while True:
            try:
                seconds = max(deadline - monotonic(), 0.0) if self._has_deadlines else None
                message = self._take(worker, seconds)
            except DeadlineError as error:
                raise WorkerLostError(
                    f"it did not {task} in the time it was given ({key})"
                ) from error
            except StreamingError as error:
                if isinstance(error, AbortedError):
                    raise
                raise WorkerLostError(str(error)) from error
            if message is not None:
                return message

    def _take(self, worker: WorkerHandle, seconds: float | None) -> FromWorker | None:
        """Receive one message; None if it was of a kind that may arrive at any time.

        Raises:
            StreamingError: The channel to the worker is closed, or no message came in time.
            WorkerLostError: The worker has ended.
        """
        message = worker.control.receive(seconds, self._abort)
        if not isinstance(message, AtAnyTime):
            return message
        self._notify(WorkerMessage(worker.name, message))
        match message:
            case Ready():
                # A process that runs a script for many sites sends it twice: its idle memory is
                # known only once the script has made its imports.
                was_ready, worker.ready = worker.ready, True
                return None if was_ready else message
            case Goodbye():
                raise WorkerLostError(
                    "its script ended before the run did; loop while is_running() is true"
                )
        return None

    def failure(self, worker: WorkerHandle) -> Failed | None:
        """Return the failure that a worker reported before it ended; None for none."""
        with suppress(FlstreamError):
            while worker.control.has_input():
                message = self._take(worker, _END_SECONDS)
                if isinstance(message, Failed):
                    return message
        return None

    def await_goodbye(self, worker: WorkerHandle, seconds: float) -> None:
        """Wait until a worker has ended, for at most ``seconds``."""
        deadline = monotonic() + seconds
        try:
            while True:
                self.next_message(worker, deadline, "end")
        except WorkerLostError:
            return
