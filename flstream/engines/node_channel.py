"""The connection between a launcher and the agent of a node, on which threads send in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import msgspec

from flstream.engines.node_files import NodeFiles
from flstream.engines.node_messages import SILENT_SECONDS, ToNode
from flstream.errors import StreamingError
from flstream.transport.messages import PATIENCE, MessageChannel
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


class OutputSender:
    """Sends what processes print, if the launcher does not see the files. Threads may share it.

    Args:
        channel: Connection to the launcher.
        files: The files.
    """

    def __init__(self, channel: NodeChannel[ToNode], files: NodeFiles) -> None:
        self._channel = channel
        self._files = files
        self._sending = threading.Lock()

    def send(self) -> bool:
        """Send what there is, a message a file at most; return whether there was anything.

        Raises:
            StreamingError: The launcher is gone.
        """
        with self._sending:
            found = False
            for each in self._files.output():
                self._channel.send(each, timeout=PATIENCE)
                found = True
            return found

    def finish(self) -> None:
        """Send all that there is, of processes that have ended.

        Raises:
            StreamingError: The launcher is gone.
        """
        while self.send():
            pass


@contextmanager
def repeating(name: str, seconds: float, send: Callable[[], object]) -> Iterator[None]:
    """Send something again and again until the block ends, on a thread of its own.

    Args:
        name: Name of the thread.
        seconds: Time between two calls.
        send: Sends it. That the peer is gone ends the thread alone: whoever waits for the peer's
            messages sees that, too.
    """
    over = threading.Event()

    def repeat() -> None:
        with suppress(StreamingError):
            while not over.wait(seconds):
                send()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
