"""The server's ends of the sockets to a worker process: requests about peers, and all others."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import TypeVar

from flstream.engines.engine import WorkerProcess
from flstream.errors import (
    AggregationError,
    CheckpointError,
    FlstreamError,
    LayoutError,
    ProtocolError,
    RefusedError,
    StreamingError,
    UsageError,
)
from flstream.streaming.receiver import Receiver
from flstream.streaming.service import DownloadService
from flstream.transport.channel import SMALL_BUFFER, AbortSignal, Channel, is_hung_up
from flstream.transport.messages import PATIENCE, MessageChannel
from flstream.worker.messages import FromWorker
from flstream.worker.peer_messages import (
    Dial,
    Folded,
    Folding,
    FoldRefused,
    FoldTask,
    Listen,
    Listening,
    PeerFailed,
    PeerReply,
    PeerRequest,
    Reach,
    Serve,
)

# What a worker may answer with that is not the fault of its process.
_ERRORS: dict[str, type[FlstreamError]] = {
    each.__name__: each for each in (AggregationError, CheckpointError, LayoutError, UsageError)
}

ReplyT = TypeVar("ReplyT", bound=PeerReply)


class PeerLink:
    """Requests to one worker about its peers. Threads may share it: one request goes at a time.

    Args:
        sock: The server's end of the socket.
        worker: Name of the worker.
        process: Name of its process, which no other one has.
        abort: Signal that stops the run.
    """

    def __init__(self, sock: socket.socket, worker: str, process: str, abort: AbortSignal) -> None:
        self._socket = sock
        self._process = process
        self._abort = abort
        self._channel: MessageChannel[PeerReply] = MessageChannel(sock, worker, PeerReply)
        self._turn = threading.Lock()
        # Names of the processes that the worker serves, guarded by a lock of its own: a worker is
        # asked for one end of a connection while the other end waits.
        self._serves: set[str] = set()
        self._connecting = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether the process at the other end lives."""
        return not is_hung_up(self._socket)

    def serve(self, other: PeerLink) -> str:
        """Have the worker offer bodies to another worker, or to itself, from now on.

        Returns:
            The name under which the other has to be offered them.

        Raises:
            StreamingError: One of the two is gone.
        """
        with self._connecting:
            if other._process not in self._serves:
                if self._is_local and other._is_local:
                    ours, theirs = socket.socketpair()
                    with ours, theirs:
                        self._ask(Serve(other._process), ours.fileno())
                        other._ask(Reach(self._process), theirs.fileno())
                else:
                    there = self.ask(Listen(other._process), Listening)
                    other._ask(Dial(self._process, there.address, there.key))
                self._serves.add(other._process)
        return other._process

    @property
    def _is_local(self) -> bool:
        return self._socket.family == socket.AF_UNIX

    def ask(
        self,
        request: PeerRequest,
        answer: type[ReplyT],
        *,
        seconds: float | None = PATIENCE,
    ) -> ReplyT:
        """Make a request, and wait for the answer.

        Args:
            request: The request.
            answer: Kind of the answer.
            seconds: How long the worker may be silent; None is without limit.

        Raises:
            AbortedError: The run is being stopped.
            StreamingError: The worker is gone or silent, or cannot do it.
            FlstreamError: What it was given cannot be folded, or the disk refused it.
        """
        reply = self._ask(request, None, seconds)
        if not isinstance(reply, answer):
            raise _out_of_turn(reply)
        return reply

    def fold(
        self, task: FoldTask, seconds: float | None, on_folding: Callable[[int], None]
    ) -> Folded | FoldRefused:
        """Have the worker fold, and wait for what comes of it.

        Args:
            task: What is folded.
            seconds: How long the worker may be silent; None is without limit.
            on_folding: Called with the bytes of the model that are done, now and then.

        Raises:
            FlstreamError: As for :meth:`ask`.
        """
        reply = self._ask(task, None, seconds, on_folding)
        if not isinstance(reply, Folded | FoldRefused):
            raise _out_of_turn(reply)
        return reply

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _ask(
        self,
        request: PeerRequest,
        handed: int | None = None,
        seconds: float | None = PATIENCE,
        on_folding: Callable[[int], None] = lambda done: None,
    ) -> PeerReply:
        with self._turn:
            try:
                self._channel.send(request, descriptors=[] if handed is None else [handed])
                while isinstance(reply := self._channel.receive(seconds, self._abort), Folding):
                    on_folding(reply.done)
            except StreamingError:
                # An answer that is still on its way would pass for that to the next request.
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
                raise
        if isinstance(reply, PeerFailed):
            raise _ERRORS.get(reply.kind, RefusedError)(reply.reason)
        return reply


def _out_of_turn(reply: PeerReply) -> ProtocolError:
    return ProtocolError(f"it answered {type(reply).__name__}, out of turn")


_numbers = count(1)


class WorkerHandle:
    """The server's end of the channels to one worker process.

    One thread at a time uses it.

    Args:
        name: Name of the worker.
        process: The process, with the server's ends of its sockets.
        service: Download service that offers models to it.
        abort: Signal that stops the run.
        is_linked: Whether its sites' links are emulated, so that little may wait in the sockets.
        is_direct: Whether either side may read files and memory of the other itself.

    Attributes:
        name: Name of the worker; its replacement has the same.
        receiver: Name under which the process receives models; its replacement has another.
        control: Channel for messages to and from the worker.
        up: Receiver that fetches the worker's updates.
        peers: Requests to the worker about other workers.
        ready: Whether the worker has reported that it is ready.
    """

    def __init__(
        self,
        name: str,
        process: WorkerProcess,
        service: DownloadService,
        abort: AbortSignal,
        *,
        is_linked: bool,
        is_direct: bool,
    ) -> None:
        self.name = name
        self.receiver = f"{name}/{next(_numbers)}"
        self.control: MessageChannel[FromWorker] = MessageChannel(
            process.ends.control, name, FromWorker
        )
        reads = process.ends.are_local and is_direct and not is_linked
        # Of a process of the same user, which may look into this one's memory by other means, too.
        self.up = Receiver(Channel(process.ends.up, name, direct=reads), name, abort)
        self.peers = PeerLink(process.ends.peers, name, self.receiver, abort)
        self.ready = False
        self._process = process
        self._service = service
        if is_linked:
            down = Channel(process.ends.down, name, buffer=SMALL_BUFFER)
        else:
            down = Channel(process.ends.down, name, direct=reads)
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
        end = self._process.ends
        return not is_hung_up(end.down, end.up, end.peers)

    def kill(self) -> None:
        """Kill the process; safe to call from any thread."""
        self._process.kill()

    def exit_code(self, seconds: float) -> int | None:
        """Wait until the process has closed all its files, and return its exit code, if known."""
        return self._process.exit_code(seconds)

    def close(self) -> None:
        """Close the sockets to the process."""
        self._process.ends.control.close()  # first, since its end is what a worker ends with
        self._service.detach(self.receiver)
        self._process.ends.up.close()
        self.peers.close()
