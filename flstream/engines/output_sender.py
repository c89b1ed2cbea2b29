"""What processes of a node print, on its way to the launcher."""

from __future__ import annotations

import threading

from flstream.engines.node_channel import NodeChannel
from flstream.engines.node_files import NodeFiles
from flstream.engines.node_messages import ToNode
from flstream.transport.messages import PATIENCE


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
