"""A place for a worker: who is there, and how whoever comes next gets ready."""

from __future__ import annotations

import threading
from time import monotonic

from flstream.client.messages import Failed
from flstream.errors import WorkerLostError
from flstream.simulator.crew.hiring import Hiring
from flstream.simulator.crew.listening import Listener
from flstream.simulator.crew.worker import Worker
from flstream.streaming.service import DownloadService
from flstream.transport.channel import AbortSignal


class Slot:
    """A place for a worker, and who has it now.

    One thread at a time uses it; any may :meth:`end` it.

    Args:
        name: of the worker.
        own: whether it is a site's own.
        hiring: where workers come from.
        listener: hears them.
        service: offers models to them.
        abort: raised to stop the run.
        ready_seconds: how long a new one may take to be ready.

    Attributes:
        worker: who is there; None if it is yet to be hired.
        failed_starts: how many in a row never got ready.
        lost_before_task: how many in a row failed before they took up a task.
        is_retired: whether nobody is hired for it any more.
    """

    def __init__(
        self,
        name: str,
        own: bool,
        hiring: Hiring,
        listener: Listener,
        service: DownloadService,
        abort: AbortSignal,
        ready_seconds: float,
    ) -> None:
        self.name = name
        self.own = own
        self.worker: Worker | None = None
        self.failed_starts = 0
        self.lost_before_task = 0
        self.is_retired = False
        self._hiring = hiring
        self._listener = listener
        self._service = service
        self._abort = abort
        self._ready_seconds = ready_seconds
        self._ending = False
        self._lock = threading.Lock()  # for what another thread may end

    @property
    def is_ending(self) -> bool:
        """Whether nobody is wanted there for the time being."""
        return self._ending

    def open(self) -> None:
        """Have somebody be wanted there again."""
        self._ending = False

    def ready_worker(self) -> Worker:
        """Whoever is there, ready for a task, or somebody new.

        Raises:
            WorkerLostError: the new one did not get ready.
            AbortedError: the run is being stopped.
        """
        if self.worker is not None and not self._listener.is_fit(self.worker):
            self.drop()
        if self.worker is None:
            hired = self._hiring.hire(self.name, self._abort)
            with self._lock:
                self.worker = Worker(self.name, hired, self._service, self._abort)
        with self._lock:
            worker = self.worker
            assert worker is not None
            if self._ending:
                worker.kill()
                raise WorkerLostError("it is no longer wanted")
        deadline = monotonic() + self._ready_seconds
        while not worker.ready:
            message = self._listener.hear(worker, deadline, "call init()")
            if isinstance(message, Failed):
                raise WorkerLostError(message.reason)
        self.failed_starts = 0
        return worker

    def end(self) -> None:
        """End whoever is there at once, whatever it is doing, even if it is only being hired."""
        with self._lock:
            self._ending = True
            if self.worker is not None:
                self.worker.kill()

    def drop(self) -> None:
        """End whoever is there, and let go of it."""
        with self._lock:
            worker, self.worker = self.worker, None
        if worker is not None:
            worker.kill()
            worker.close()
