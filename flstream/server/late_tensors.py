"""Tensors that a worker is sent while it trains, of a model that is made meanwhile."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from threading import Lock

from flstream.errors import ChannelClosedError
from flstream.model.source import Source
from flstream.server.context import ServerContext
from flstream.server.tasks import ModelOffer, TaskSpec, offered_bodies, offers_by_server
from flstream.server.worker_handle import WorkerHandle
from flstream.worker.messages import Late


class LateTensors:
    """The late tensors of one site's training, on offer once they and a worker are there.

    The thread that runs the workflow makes them, and a thread of the pool has the worker.
    """

    def __init__(self, context: ServerContext, spec: TaskSpec) -> None:
        self._context = context
        self._spec = spec
        self._lock = Lock()
        self._tensors: tuple[Source, Source | None] | None = None
        self._worker: WorkerHandle | None = None
        self._offers: Generator[ModelOffer] | None = None

    def offer(self, tensors: Source, changes: Source | None) -> None:
        """Offer the tensors to the worker that trains, or to the next one that does.

        Args:
            tensors: The tensors.
            changes: Their encoded changes from what the site has, sent in their place; None to
                send them as other models are.
        """
        with self._lock:
            self._tensors = tensors, changes
            self._send()

    def give(self, worker: WorkerHandle) -> None:
        """Take note of the worker that was given the training."""
        parts = self._spec.task.parts
        if parts is not None and parts.is_late:
            with self._lock:
                self._worker = worker
                self._send()

    def withdraw(self) -> None:
        """Withdraw the offer: the worker is done with its task, or lost."""
        with self._lock:
            self._worker = None
            if self._offers is not None:
                self._offers.close()
                self._offers = None

    def _send(self) -> None:
        worker, lossy = self._worker, self._spec.lossy
        if self._tensors is None or worker is None or self._offers is not None:
            return
        tensors, changes = self._tensors
        coded = lossy.encode(tensors) if changes is None and lossy is not None else changes
        self._offers = offers_by_server(self._context, tensors, worker, coded=coded)
        bodies = offered_bodies(next(self._offers))
        late = Late(self._spec.task.effect, bodies, are_changes=changes is not None)
        with suppress(ChannelClosedError):  # whoever waits for its answer learns of its end
            worker.control.send(late)
