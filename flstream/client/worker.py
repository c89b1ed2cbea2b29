"""A worker's line to the server: tasks and models come in, updates are on offer."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from flstream.client.messages import FromWorker, Ready, Stop, Task, ToWorker
from flstream.client.worker_info import WorkerInfo
from flstream.errors import ChannelClosedError, DeadlineError
from flstream.model.body import Source
from flstream.model.layout import Layout
from flstream.model.reuse import ModelMemory
from flstream.streaming.download import SinkT, download
from flstream.streaming.receiver import Receiver
from flstream.streaming.refs import Ref
from flstream.streaming.service import DownloadService
from flstream.telemetry.events import SERVER, Transfer
from flstream.telemetry.memory import own_rss
from flstream.transport.messages import MessageChannel

# A task that follows another comes well within this.
_SOON_SECONDS = 1.0

Selection = Callable[[Layout], Collection[str]]
"""Gives the names of the tensors of a layout that are aggregated."""


class Worker:
    """A process that does the work of sites.

    Args:
        info: what it knows of the run.
        control: messages to and from the server.
        down: where the server's models arrive.
        service: where updates are on offer to the server.
        selection: which tensors have to travel to the server; None for all.
        enter: called with the name of each site whose work begins, and with None when it is over.

    Attributes:
        info: what it knows of the run.
        selection: as given.
        enter: as given.
        memory: for the models that it receives.
    """

    def __init__(
        self,
        info: WorkerInfo,
        control: MessageChannel[ToWorker],
        down: Receiver,
        service: DownloadService,
        selection: Selection | None = None,
        enter: Callable[[str | None], None] = lambda site: None,
    ) -> None:
        self.info = info
        self.selection = selection
        self.enter = enter
        self.memory = ModelMemory()
        self._control = control
        self._down = down
        self._service = service
        self._is_ready = False
        self._stopped = False

    def ready(self) -> None:
        """Report to the server. What memory the process has now counts as its idle."""
        if not self._is_ready:
            self._is_ready = True
            self.send(Ready(os.getpid(), own_rss()))

    def expect_imports(self) -> None:
        """Training code is yet to be imported: the next :meth:`ready` counts, too."""
        self._is_ready = False

    def next_task(self, timeout: float | None = None) -> Task | None:
        """Wait for a task; None if there are no more, or none came within ``timeout`` seconds."""
        if self._stopped:
            return None
        soon = _SOON_SECONDS if timeout is None else min(timeout, _SOON_SECONDS)
        if not self._control.wait(soon):
            # Whoever is not sampled for a while is not to sit on the memory of a model.
            self.memory.release()
            timeout = None if timeout is None else timeout - soon
        try:
            message = self._control.receive(timeout)
        except DeadlineError:
            return None
        except ChannelClosedError:
            message = Stop()
        if isinstance(message, Stop):
            self._stopped = True
            return None
        return message

    def send(self, message: FromWorker) -> None:
        """Tell the server something."""
        self._control.send(message)

    def fetch(self, token: bytes, sink_for: Callable[[Layout], SinkT]) -> tuple[SinkT, Transfer]:
        """Download a model, as :func:`flstream.streaming.download.download` does."""
        return download(self._down, token, self.info.streaming, sink_for)

    def offer(self, source: Source, chunk_size: int) -> Ref:
        """Offer an update to the server.

        Args:
            source: its body, which must not change before the ref settles.
            chunk_size: longest frame in bytes in which it may be pushed.
        """
        streaming = self.info.streaming
        push = streaming._replace(chunk_size=chunk_size) if streaming.push else None
        return self._service.offer(source, [SERVER], push=push)
