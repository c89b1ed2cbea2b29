"""A worker's connection to the server, for tasks and updates."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property

from flstream.errors import ChannelClosedError, DeadlineError, ProtocolError, RefusedError
from flstream.model.reuse import ModelMemory
from flstream.model.source import Source
from flstream.streaming.coding import EncoderFor
from flstream.streaming.receiver import Receiver
from flstream.streaming.refs import Ref
from flstream.streaming.service import DownloadService
from flstream.telemetry.events import SERVER, Transfer
from flstream.telemetry.memory import own_rss, rss_of
from flstream.transport.messages import MessageChannel
from flstream.worker.messages import FromWorker, Late, Progress, Ready, Stop, Task, ToWorker
from flstream.worker.peers import Peers
from flstream.worker.site_changes import SiteChanges
from flstream.worker.worker_info import WorkerInfo

# Seconds within which a task normally follows another.
_SOON_SECONDS = 1.0


class Worker:
    """Worker: a process that does the work of sites.

    Args:
        info: Facts about the run and the worker.
        control: Channel for messages to and from the server.
        down: Receiver of the server's models.
        service: Download service that offers updates to the server.
        peers: Other workers, which may offer models and fetch updates.
        enter: Function called with the name of each site whose part of a task begins, and with None
            when the task is over.

    Attributes:
        info: Facts about the run and the worker.
        enter: Function called with each site whose part of a task begins, and with None at its end.
        down: Receiver of the server's models.
        peers: Other workers, which may offer models and fetch updates.
        memory: Memory for received models, reused from one task to the next.
        base: Name of the last received model and the model, where later ones are encoded with it.
        has_received: Whether a model has been received.
    """

    def __init__(
        self,
        info: WorkerInfo,
        control: MessageChannel[ToWorker],
        down: Receiver,
        service: DownloadService,
        peers: Peers,
        enter: Callable[[str | None], None] = lambda site: None,
    ) -> None:
        self.info = info
        self.enter = enter
        self.memory = ModelMemory()
        self.base: tuple[str, Source | None] = "", None
        self.down = down
        self.peers = peers
        self.has_received = False
        self._control = control
        self._service = service
        self._is_ready = False
        self._stopped = False
        # Seconds that it takes to fetch the last model again.
        self._fetching = 0.0

    @cached_property
    def changes(self) -> SiteChanges:
        """Filters and codecs of its sites."""
        return SiteChanges(self.info)

    def ready(self, others: Sequence[int] = ()) -> None:
        """Report to the server, once, that the worker is ready.

        The memory of the worker's processes at this time counts as its idle memory.

        Args:
            others: Pids of processes that count as the worker's beside this one.
        """
        if not self._is_ready:
            self._is_ready = True
            idle = own_rss() + sum(map(rss_of, others))
            self.send(Ready(os.getpid(), idle, list(others)))

    def expect_imports(self) -> None:
        """Report again at the next :meth:`ready`, after training code's imports."""
        self._is_ready = False

    def next_task(self, timeout: float | None = None) -> Task | None:
        """Wait for a task, and acknowledge it.

        Args:
            timeout: Seconds to wait; None to wait without a limit.

        Returns:
            The task; None if there are no more, or none came in time.
        """
        if self._stopped:
            return None
        # A model that takes long to fetch stays useful for as long.
        soon = max(_SOON_SECONDS, self._fetching)
        soon = soon if timeout is None else min(timeout, soon)
        if not self._control.has_input(soon):
            # A worker without a task for a while must not keep the memory of a model.
            self.memory.release()
            timeout = None if timeout is None else timeout - soon
        try:
            task = self.receive(timeout)
        except DeadlineError:
            return None
        except ChannelClosedError:
            self._stopped = True
            return None
        if task is not None:
            self.send(Progress(task.effect, "taken"))
        return task

    def receive(self, timeout: float | None = None) -> Task | None:
        """Receive a task, or a lost host's task again; None once the run is over."""
        message = self._control.receive(timeout)
        if isinstance(message, Stop):
            self._stopped = True
            return None
        if isinstance(message, Late):
            raise ProtocolError("the server sent late tensors to a worker without a training")
        return message

    def receive_late(self, effect: int) -> Late:
        """Wait for the offer of the late tensors of a training.

        Raises:
            StreamingError: The run ended before they came.
        """
        message = self._control.receive(None)
        if isinstance(message, Late) and message.effect == effect:
            return message
        if isinstance(message, Stop):
            self._stopped = True
            raise RefusedError("the run is over")
        raise ProtocolError("the server sent something else than late tensors")

    def send(self, message: FromWorker) -> None:
        """Send a message to the server."""
        self._control.send(message)

    def received(self, effect: int, cost: Transfer) -> None:
        """Report to the server that a task's model has arrived, and its cost."""
        self.has_received = True
        self._fetching = cost.seconds if self.info.streaming.reuse else 0.0
        self.send(Progress(effect, "received", cost=cost))

    def offer(self, source: Source, encoder: EncoderFor | None = None) -> Ref:
        """Offer an update to the server, in whose place a peer may fetch it.

        Args:
            source: Body of the update, which must not change until the ref has settled.
            encoder: Encoder of its frames for the server; None for none.

        Returns:
            The ref, which settles once the update was used or rejected.
        """
        return self._service.offer(source, [SERVER], encoder=encoder)
