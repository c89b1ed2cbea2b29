"""The connection between a launcher and the agent of a node, on which threads send in turn."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

from flstream.engines.node_messages import SILENT_SECONDS
from flstream.errors import StreamingError
from flstream.transport.messages import MessageChannel
from flstream.transport.sockets import SocketChannel

MessageT = TypeVar("MessageT")


class NodeChannel(MessageChannel[MessageT]):
    """Sends and receives messages; any thread may send, and one receives.

    Args:
        channel: Channel that carries the bytes.
        peer: Name of the process at the other end, for messages of errors.
        kinds: Union of the message types that may arrive, equal to ``MessageT``.
    """

    def __init__(self, channel: SocketChannel, peer: str, kinds: Any) -> None:
        super().__init__(channel, peer, kinds)
        self._socket = channel
        self._sending = threading.Lock()

    def send(self, *messages: msgspec.Struct, timeout: float | None = SILENT_SECONDS) -> None:
        """Send messages, all at once.

        Raises:
            StreamingError: The peer is gone, or takes nothing within ``timeout`` seconds.
        """
        with self._sending:
            try:
                super().send(*messages, timeout=timeout)
            except StreamingError:
                # A part of it may be on the line, after which nothing can be read there.
                self.shut()
                raise

    def shut(self) -> None:
        """End the connection in both directions, also for the thread that waits for messages."""
        self._socket.shut()

    def close(self) -> None:
        """Close the connection."""
        with self._sending:
            super().close()
