"""What workers say, and what of it they may say at any time."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from flstream.client.messages import Failed, FromWorker, Goodbye, Logged, Ready
from flstream.errors import (
    AbortedError,
    DeadlineError,
    FlstreamError,
    StreamingError,
    WorkerLostError,
)
from flstream.simulator.crew.worker import Worker
from flstream.transport.channel import AbortSignal

# How long a worker whose code has failed may take to end.
_END_SECONDS = 5.0


class Heard(NamedTuple):
    """Something a worker said that can be said at any time."""

    worker: str
    message: Ready | Logged | Goodbye


class Replaced(NamedTuple):
    """A worker that ended while it was left alone, and why; there will be another."""

    worker: str
    reason: str


class Listener:
    """Hears workers, on whatever thread each is talked to.

    Args:
        tell: takes what they say that can be said at any time.
        abort: raised to stop the run.
    """

    def __init__(self, tell: Callable[[Heard | Replaced], None], abort: AbortSignal) -> None:
        self._tell = tell
        self._abort = abort

    def is_fit(self, worker: Worker) -> bool:
        """Whether a worker that was left alone for a while can be given a task."""
        try:
            while worker.control.has_input():
                message = self._take(worker, _END_SECONDS)
                if isinstance(message, Failed):
                    # It failed after it had answered. What it answered counts.
                    self.await_goodbye(worker, _END_SECONDS)
                    raise WorkerLostError(message.reason)
        except AbortedError:
            raise
        except FlstreamError as error:
            self._tell(Replaced(worker.name, str(error)))
            return False
        return True

    def hear(self, worker: Worker, deadline: float, task: str) -> FromWorker:
        """Take a worker's next message, and deal with those that can come at any time.

        Args:
            worker: whose.
            deadline: on the clock of ``time.monotonic()``.
            task: what it is to do by then, for the message of the error.

        Raises:
            WorkerLostError: it ended, died or did not get there in time.
            AbortedError: the run is being stopped.
        """
        while True:
            try:
                message = self._take(worker, max(deadline - monotonic(), 0.0))
            except DeadlineError as error:
                raise WorkerLostError(
                    f"it did not {task} in the time it was given (clients.round_timeout)"
                ) from error
            except StreamingError as error:
                if isinstance(error, AbortedError):
                    raise
                raise WorkerLostError(str(error)) from error
            if message is not None:
                return message

    def _take(self, worker: Worker, seconds: float) -> FromWorker | None:
        """Take one message; None if it is one that can come at any time.

        Raises:
            StreamingError: the worker is gone, or says nothing.
            WorkerLostError: it says goodbye.
        """
        message = worker.control.receive(seconds, self._abort)
        match message:
            case Ready():
                # A script that serves many sites says so twice: its idle is known once it was run.
                was_ready, worker.ready = worker.ready, True
                self._tell(Heard(worker.name, message))
                return None if was_ready else message
            case Logged():
                self._tell(Heard(worker.name, message))
                return None
            case Goodbye():
                self._tell(Heard(worker.name, message))
                raise WorkerLostError(
                    "its script ended before the run did; loop while is_running() is true"
                )
        return message

    def await_goodbye(self, worker: Worker, seconds: float) -> None:
        """Wait until a worker has ended, or for so long."""
        deadline = monotonic() + seconds
        try:
            while True:
                self.hear(worker, deadline, "end")
        except WorkerLostError:
            return
