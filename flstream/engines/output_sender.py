"""What processes of a node print, on its way to the launcher."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from flstream.engines.node_channel import NodeChannel
from flstream.engines.node_files import NodeFiles
from flstream.engines.node_messages import ToNode
from flstream.errors import StreamingError
from flstream.transport.messages import PATIENCE

# Seconds between two looks.
_SECONDS = 0.25


class OutputSender:
    """Sends what processes print, if the launcher does not see the files.

    Args:
        channel: Connection to the launcher.
        files: The files.
    """

    def __init__(self, channel: NodeChannel[ToNode], files: NodeFiles) -> None:
        self._channel = channel
        self._files = files
        self._sending = threading.Lock()
        self._over = threading.Event()

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
    def sending(self) -> Iterator[None]:
        """Send it again and again until the block ends, on a thread of its own.

        It may be much, and neither a beat nor a request of the launcher is to wait for it.
        """
        thread = threading.Thread(target=self._repeat, name="output", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _repeat(self) -> None:
        with suppress(StreamingError):
            while not self._over.wait(_SECONDS):
                self.send()
