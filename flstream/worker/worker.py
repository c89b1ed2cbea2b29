"""A worker's connection to the server: tasks and models arrive, updates are offered."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import NamedTuple

from flstream.codecs.chain import CodecChain, chain_of
from flstream.codecs.frames import decoder_for
from flstream.errors import ChannelClosedError, CheckpointError, DeadlineError, RefusedError
from flstream.model.layout import Layout
from flstream.model.mapped import MappedModel
from flstream.model.reuse import ModelMemory
from flstream.model.source import Source
from flstream.streaming.coding import EncoderFor
from flstream.streaming.download import RemoteSource
from flstream.streaming.receiver import Receiver
from flstream.streaming.refs import Ref
from flstream.streaming.service import DownloadService
from flstream.telemetry.events import SERVER, Transfer
from flstream.telemetry.memory import own_rss, rss_of
from flstream.transport.messages import MessageChannel
from flstream.worker.messages import (
    LAYOUT,
    MODEL,
    FromWorker,
    Progress,
    Ready,
    Stop,
    Task,
    ToWorker,
)
from flstream.worker.model_form import ModelForm
from flstream.worker.peer_messages import Offered
from flstream.worker.peers import Peers
from flstream.worker.worker_info import WorkerInfo

# Seconds within which a task normally follows another.
_SOON_SECONDS = 1.0


class KnownModel(NamedTuple):
    """A model that was received before.

    Attributes:
        name: Its name; empty for none.
        source: The model as it was received; None for none.
    """

    name: str = ""
    source: Source | None = None


Selection = Callable[[Layout], Collection[str]]
"""Function that returns the names of a layout's tensors that are aggregated."""


class Worker:
    """Worker: a process that does the work of sites.

    Args:
        info: Facts about the run and the worker.
        control: Channel for messages to and from the server.
        down: Receiver of the server's models.
        service: Download service that offers updates to the server.
        peers: Other workers, which may offer models and fetch updates.
        selection: Function that selects the tensors to send to the server; None for all.
        enter: Function called with the name of each site whose part of a task begins, and with None
            when the task is over.

    Attributes:
        info: Facts about the run and the worker.
        selection: Function that selects the tensors to send to the server; None for all.
        enter: Function called with each site whose part of a task begins, and with None at its end.
        memory: Memory for received models, reused from one task to the next.
        base: The last one, where later ones are encoded with it.
    """

    def __init__(
        self,
        info: WorkerInfo,
        control: MessageChannel[ToWorker],
        down: Receiver,
        service: DownloadService,
        peers: Peers,
        selection: Selection | None = None,
        enter: Callable[[str | None], None] = lambda site: None,
    ) -> None:
        self.info = info
        self.selection = selection
        self.enter = enter
        self.memory = ModelMemory()
        self.base = KnownModel()
        self._control = control
        self._down = down
        self._service = service
        self._peers = peers
        # The connection to the peer that offers the model under way.
        self._host = ExitStack()
        self._is_ready = False
        self._stopped = False
        # Seconds that it takes to fetch the last one again.
        self._fetching = 0.0
        self._has_received = False

    @cached_property
    def update_codecs(self) -> CodecChain:
        """Codecs of updates."""
        return chain_of(self.info.codecs_up)

    @cached_property
    def model_codecs(self) -> CodecChain:
        """Codecs of received models."""
        return chain_of(self.info.codecs_down)

    @property
    def needs_base(self) -> bool:
        """Whether the last received model is kept, since later ones are encoded with it."""
        return self.info.codecs_down.needs_base

    def ready(self, others: Sequence[int] = ()) -> None:
        """Report to the server that the worker is ready, unless that was done before.

        The memory of the worker's processes at this time counts as its idle memory.

        Args:
            others: Pids of processes that count as the worker's beside this one.
        """
        if not self._is_ready:
            self._is_ready = True
            idle = own_rss() + sum(map(rss_of, others))
            self.send(Ready(os.getpid(), idle, list(others)))

    def expect_imports(self) -> None:
        """Report again at the next :meth:`ready`, since training code is yet to be imported."""
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
        # What takes long to fetch may be of use for as long.
        soon = max(_SOON_SECONDS, self._fetching)
        soon = soon if timeout is None else min(timeout, soon)
        if not self._control.has_input(soon):
            # A worker without a task for a while must not keep the memory of a model.
            self.memory.release()
            timeout = None if timeout is None else timeout - soon
        try:
            message = self._control.receive(timeout)
        except DeadlineError:
            return None
        except ChannelClosedError:
            message = Stop()
        if not isinstance(message, Task):
            self._stopped = True
            return None
        self.send(Progress(message.effect, "taken"))
        return message

    def send(self, message: FromWorker) -> None:
        """Send a message to the server."""
        self._control.send(message)

    def open(
        self, bodies: Mapping[str, bytes], host: Offered | None = None
    ) -> tuple[RemoteSource, ModelForm]:
        """Open a model that is on offer, which is to be downloaded next.

        Args:
            bodies: Token of each body on offer, by its name: the model's, and the layout's where
                the model comes encoded.
            host: The peer's offer of it; None where it is the server's.

        Returns:
            What is sent, and the form in which that is the model.

        Raises:
            StreamingError: It cannot be opened.
        """
        receiver = self._down
        if host is not None:
            self._host.close()  # of an attempt that failed
            receiver = self._host.enter_context(self._peers.dial(host))
        streaming = self.info.streaming
        frames, lossy = self.model_codecs.frames, self.model_codecs.lossy
        form = ModelForm(None, None)
        if LAYOUT in bodies and lossy is not None:
            form = ModelForm.fetched(lossy, receiver, bodies[LAYOUT], streaming)
        decoder = decoder_for(frames, form.encoded(self.base.source), self.base.name)
        remote = RemoteSource(
            receiver,
            bodies[MODEL],
            streaming,
            digests=streaming.reuse and self._has_received,
            decoder_for=None if host else decoder,
        )
        return remote, form

    def received(self, effect: int, cost: Transfer) -> None:
        """Report to the server that the model of a task has arrived, and its cost."""
        self._host.close()
        self._has_received = True
        self._fetching = cost.seconds if self.info.streaming.reuse else 0.0
        self.send(Progress(effect, "received", cost=cost))

    def map(self, token: bytes) -> MappedModel:
        """Map a model's checkpoint, which the server hands over.

        Args:
            token: Token of the offered model.

        Raises:
            FlstreamError: It is not handed over, or cannot be mapped.
        """
        # It is not expected soon that a model is received into memory again.
        self.memory.release()
        remote = RemoteSource(self._down, token, self.info.streaming)
        try:
            file = remote.take_file()
            if file is None:
                raise RefusedError("the server has not handed over the model's checkpoint")
            model = MappedModel(file.fd, "the checkpoint that the server has handed over")
            if model.layout != remote.layout:
                raise CheckpointError("the server has handed over a checkpoint of other tensors")
        except BaseException as error:
            remote.fail(error)
            raise
        remote.close()
        return model

    def fetch_again(self, task: Task) -> Task:
        """Report that the peer that offers a task's model is lost, and wait for another offer.

        Args:
            task: The task.

        Returns:
            The task with its model on offer elsewhere.

        Raises:
            StreamingError: There is no other offer.
        """
        self.send(Progress(task.effect, "host lost"))
        message = self._control.receive()
        if not isinstance(message, Task):
            self._stopped = True
            raise RefusedError("the run is over")
        return message

    def offer(self, source: Source, encoder: EncoderFor | None = None) -> Ref:
        """Offer an update to the server, in whose place a peer may fetch it.

        Args:
            source: Body of the update, which must not change until the ref has settled.
            encoder: What makes its frames smaller for the server; None for nothing.

        Returns:
            The ref, which settles once the update was used or rejected.
        """
        return self._service.offer(source, [SERVER], encoder=encoder)
