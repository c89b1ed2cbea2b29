"""Fetch of tensors that come while a site trains, in a thread beside the training."""

from __future__ import annotations

from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING

from flstream.errors import FlstreamError
from flstream.model.memory import MemoryBody
from flstream.telemetry.events import Transfer
from flstream.worker.messages import Progress

if TYPE_CHECKING:
    from flstream.client.learner import SiteContext
    from flstream.worker.task_model import TaskModel


class LateFetch:
    """The late tensors of one training, whose offer a thread waits for."""

    def __init__(self, model: TaskModel, site: SiteContext) -> None:
        self._model, self._site = model, site
        self._result: tuple[MemoryBody, Transfer] | FlstreamError | None = None
        self._thread = Thread(target=self._fetch, name="late tensors", daemon=True)
        self._thread.start()

    def _fetch(self) -> None:
        try:
            self._result = self._model.fetch_late(self._site)
        except FlstreamError as error:
            self._result = error

    def result(self) -> MemoryBody:
        """Wait for the tensors, and report what they have cost.

        Raises:
            FlstreamError: They did not come.
        """
        began = monotonic()
        self._thread.join()
        if not isinstance(self._result, tuple):
            raise self._result or FlstreamError("the late tensors did not come; see the log")
        body, cost = self._result
        report = Progress(self._model.task.effect, "late", cost=cost, waited=monotonic() - began)
        self._model.worker.send(report)
        return body
