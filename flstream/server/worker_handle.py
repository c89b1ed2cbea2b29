"""The server's end of the channels to a worker process."""

from __future__ import annotations

import select
from itertools import count

from flstream.client.messages import FromWorker
from flstream.engines.spawning import SpawnedWorker
from flstream.errors import SimulationError
from flstream.server.peer_link import PeerLink
from flstream.streaming.receiver import Receiver
from flstream.streaming.service import DownloadService
from flstream.transport.channel import AbortSignal
from flstream.transport.messages import MessageChannel
from flstream.transport.sockets import SMALL_BUFFER, SocketChannel

_numbers = count(1)


class WorkerHandle:
    """The server's end of the channels to one worker process.

    One thread at a time uses it.

    Args:
        name: Name of the worker.
        spawned: The process, with the server's ends of its pipes.
        service: Download service that offers models to it.
        abort: Signal that stops the run.

    Attributes:
        name: Name of the worker; its replacement has the same.
        receiver: Name under which the process receives models; its replacement has another.
        control: Channel for messages to and from the worker.
        up: Receiver that fetches the worker's updates.
        peers: Requests to the worker about other workers.
        ready: Whether the worker has reported that it is ready.
        sees_run: Whether it sees the run directory, as it has reported.
    """

    def __init__(
        self, name: str, spawned: SpawnedWorker, service: DownloadService, abort: AbortSignal
    ) -> None:
        self.name = name
        self.receiver = f"{name}/{next(_numbers)}"
        self.control: MessageChannel[FromWorker] = MessageChannel(
            SocketChannel(spawned.end.control, name), name, FromWorker
        )
        self.up = Receiver(SocketChannel(spawned.end.up, name), name, abort)
        self.peers = PeerLink(spawned.end.peers, name, self.receiver, abort)
        self.ready = False
        self.sees_run = True
        self._spawned = spawned
        self._service = service
        # A process of the same user, which may look into this one's memory by other means.
        if spawned.is_linked:
            down = SocketChannel(spawned.end.down, name, buffer=SMALL_BUFFER)
        else:
            down = SocketChannel(spawned.end.down, name, lends=spawned.end.are_local)
        service.attach(down, receiver=self.receiver)

    @property
    def lives(self) -> bool:
        """Whether the process is ready and alive; any thread may ask."""
        return self.ready and self.peers.is_open

    @property
    def is_whole(self) -> bool:
        """Whether all connections to the process are open: over TCP, one of them may break alone.

        That of the control messages is not looked at, since there may be messages in it.
        """
        poll = select.poll()
        try:
            for end in (self._spawned.end.down, self._spawned.end.up, self._spawned.end.peers):
                poll.register(end, select.POLLRDHUP)
        except ValueError:  # one was closed
            return False
        return not poll.poll(0)

    def expect_run(self) -> None:
        """Refuse a worker that does not see the run directory, where models are files to sites.

        Raises:
            SimulationError: It does not.
        """
        if not self.sees_run:
            raise SimulationError(
                "sites that fold find models as files in the run directory, which the node of "
                f"{self.name} does not see; put the run where all nodes see it (--run-dir), or "
                "choose a workflow whose server folds"
            )

    def kill(self) -> None:
        """Kill the process; safe to call from any thread."""
        self._spawned.kill()

    def await_end(self, seconds: float) -> None:
        """Wait until the process, which was killed, has closed all its files."""
        self._spawned.await_end(seconds)

    def close(self) -> None:
        """Close the pipes to the process."""
        self._service.detach(self.receiver)
        self._spawned.end.control.close()
        self._spawned.end.up.close()
        self.peers.close()
