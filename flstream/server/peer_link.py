"""Requests to workers about other workers, and the models that workers offer each other."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import TypeVar

from flstream import errors
from flstream.errors import AbortedError, FlstreamError, ProtocolError, StreamingError
from flstream.model.checkpoint import FileSource
from flstream.server.context import ServerContext
from flstream.server.tasks import ModelOffer
from flstream.server.worker_handle import WorkerHandle
from flstream.streaming.refs import Delivery
from flstream.transport.channel import AbortSignal
from flstream.transport.messages import PATIENCE, MessageChannel
from flstream.worker.messages import Offered
from flstream.worker.peer_messages import Folding, Offer, PeerFailed, PeerReply, PeerRequest

ReplyT = TypeVar("ReplyT", bound=PeerReply)


class PeerLink:
    """Requests to one worker about its peers. Threads may share it: one request goes at a time."""

    def __init__(self, sock: socket.socket, worker: str, abort: AbortSignal) -> None:
        self._socket = sock
        self._abort = abort
        self._channel: MessageChannel[PeerReply] = MessageChannel(sock, worker, PeerReply)
        self._turn = threading.Lock()

    def ask(
        self,
        request: PeerRequest,
        answer: type[ReplyT],
        *,
        seconds: float | None = PATIENCE,
        on_folding: Callable[[Folding], None] = lambda folding: None,
    ) -> ReplyT:
        """Make a request, and wait for the answer.

        Args:
            request: The request.
            answer: Kind of the answer.
            seconds: How long the worker may be silent; None is without limit.
            on_folding: Called with how far a fold is, now and then.
        """
        with self._turn:
            try:
                self._channel.send(request)
                while isinstance(reply := self._channel.receive(seconds, self._abort), Folding):
                    on_folding(reply)
            except StreamingError:
                # An answer that is still on its way would pass for that to the next request.
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
                raise
        if isinstance(reply, PeerFailed):
            error: FlstreamError = getattr(errors, reply.error)(*reply.arguments)
            raise error
        if not isinstance(reply, answer):
            raise ProtocolError(f"it answered {type(reply).__name__}, out of turn")
        return reply


def offers_by_peers(
    context: ServerContext, model: FileSource, worker: WorkerHandle, hosts: Sequence[str]
) -> Generator[ModelOffer]:
    """Offers of a model by workers to another, one after another until one has delivered it.

    The next one takes its turn when the iterator goes on. Any worker can open the file, so the last
    one that is asked is the receiving one itself.
    """
    pool = context.pool
    names = dict.fromkeys([*map(context.worker_of, hosts), *pool.names])
    living = [pool.living(name) for name in names if name != worker.name]
    for host in [*filter(None, living), worker]:
        try:
            offered = host.peers.ask(Offer(worker.name, str(model.path)), Offered)
        except AbortedError:
            raise
        except StreamingError:
            continue  # it has just died
        yield ModelOffer(offered.token, offered, Delivery())
