"""The server's hold on one worker process."""

from __future__ import annotations

from itertools import count

from flstream.client.messages import FromWorker
from flstream.simulator.crew.hiring import Hired
from flstream.streaming.receiver import Receiver
from flstream.streaming.service import DownloadService
from flstream.transport.channel import AbortSignal
from flstream.transport.messages import MessageChannel
from flstream.transport.pipe import PipeChannel

_numbers = count(1)


class Worker:
    """A worker, as the server sees it. One thread uses it at a time.

    Attributes:
        name: of the worker; one that replaces it has the same.
        receiver: the name under which it receives models, which is its own.
        control: messages to and from it.
        up: where its updates are fetched.
        ready: whether its code has begun.
    """

    def __init__(
        self, name: str, hired: Hired, service: DownloadService, abort: AbortSignal
    ) -> None:
        self.name = name
        self.receiver = f"{name}/{next(_numbers)}"
        self.control: MessageChannel[FromWorker] = MessageChannel(
            PipeChannel(hired.end.control, name), name, FromWorker
        )
        self.up = Receiver(PipeChannel(hired.end.up, name), name, abort)
        self.ready = False
        self._hired = hired
        self._service = service
        service.attach(PipeChannel(hired.end.down, name), receiver=self.receiver)

    def kill(self) -> None:
        """End the process at once. Any thread may do that."""
        self._hired.kill()

    def close(self) -> None:
        """Give up the pipes to it."""
        self._service.detach(self.receiver)
        self._hired.end.control.close()
        self._hired.end.up.close()
