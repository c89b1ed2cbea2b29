"""The server's end of the socket over which a worker deals with its peers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from flstream import errors
from flstream.errors import FlstreamError, ProtocolError, StreamingError
from flstream.transport.channel import AbortSignal, is_hung_up
from flstream.transport.messages import PATIENCE, MessageChannel
from flstream.worker.peer_messages import Folding, PeerFailed, PeerReply, PeerRequest

ReplyT = TypeVar("ReplyT", bound=PeerReply)


class PeerLink:
    """Requests to one worker about its peers. Threads may share it: one request goes at a time."""

    def __init__(self, sock: socket.socket, worker: str, abort: AbortSignal) -> None:
        self._socket = sock
        self._abort = abort
        self._channel: MessageChannel[PeerReply] = MessageChannel(sock, worker, PeerReply)
        self._turn = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether the process at the other end lives."""
        return not is_hung_up(self._socket)

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

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
