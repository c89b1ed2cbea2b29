"""Workers that are threads of the test: a pool cannot tell, and a run of thousands is cheap."""

import threading
from collections import Counter
from contextlib import suppress

from flstream.engines.engine import worker_socket_pairs
from flstream.errors import StreamingError
from flstream.transport.messages import MessageChannel
from flstream.worker.messages import Ready, ToWorker

PATIENCE = 20.0


class ThreadWorker:
    """One of them: ready at once and then silent, or dead from the beginning.

    Attributes:
        ends: The server's ends of the sockets.
        theirs: Its own.
    """

    def __init__(self, gets_ready: bool) -> None:
        self.ends, self.theirs = worker_socket_pairs()
        self._thread = threading.Thread(target=self._live, daemon=True)
        if gets_ready:
            self._thread.start()
        else:
            self.kill()

    def _live(self) -> None:
        with suppress(StreamingError):
            MessageChannel(self.theirs.control, "server", ToWorker).send(Ready(1, 1))

    def kill(self) -> None:
        """As the kernel does it, but that the end of the data pipe stays, to look at."""
        for end in (self.theirs.control, self.theirs.up):
            with suppress(OSError):
                end.shutdown(2)

    def exit_code(self, seconds) -> None:
        """Return nothing: how it has ended is not known."""

    def was_let_go(self) -> bool:
        """Wait until the server has closed the pipe it sends models on; return whether it has."""
        self.theirs.down.settimeout(PATIENCE)
        with suppress(TimeoutError):
            while self.theirs.down.recv(1 << 10):  # the greeting
                pass
            return True
        return False

    def close(self) -> None:
        """Give back what it takes of this process."""
        if self._thread.ident is not None:
            self._thread.join(PATIENCE)
        self.theirs.close()


class ThreadEngine:
    """Engine whose workers are threads.

    Args:
        vain: By name of a worker, how many of those started never get ready.
    """

    def __init__(self, vain: dict[str, float]) -> None:
        self._vain = vain
        self._lock = threading.Lock()
        self.started: Counter[str] = Counter()
        self.workers: list[ThreadWorker] = []

    def start(self, name) -> ThreadWorker:
        """One more of a name."""
        with self._lock:
            self.started[name] += 1
            self.workers.append(ThreadWorker(self.started[name] > self._vain.get(name, 0)))
            return self.workers[-1]

    def close(self) -> None:
        """Close all workers."""
        for worker in self.workers:
            worker.close()
