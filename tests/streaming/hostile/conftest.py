"""A service that is attacked, and how much this process grows."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import psutil
import pytest

from flstream.streaming.receiver import Receiver
from flstream.streaming.service import DownloadService
from flstream.transport.sockets import SocketChannel, pipe


class Attacked:
    """A service, with receivers that keep to the rules, and sockets for others that do not."""

    def __init__(self, stack: ExitStack) -> None:
        self.service = stack.enter_context(DownloadService())
        self._stack = stack

    def receiver(self, name: str) -> Receiver:
        """A receiver that keeps to the rules."""
        ours, theirs = pipe("server", name)
        self.service.attach(ours, name)
        return Receiver(self._stack.enter_context(closing(theirs)), "server")

    def socket(self, name: str, *, lends: bool = False) -> socket.socket:
        """The other end of a channel, on which anything may be said."""
        ours, theirs = socket.socketpair()
        self.service.attach(SocketChannel(ours, name, lends=lends), name)
        return self._stack.enter_context(theirs)


@pytest.fixture
def attacked() -> Iterator[Attacked]:
    with ExitStack() as stack:
        yield Attacked(stack)


class Growth:
    """The most by which this process has grown since it was made, in bytes."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._before = self._process.memory_info().rss
        self._peak = self._before
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=Growth.__name__, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self._peak = max(self._peak, self._process.memory_info().rss)

    def stop(self) -> int:
        self._stop.set()
        self._thread.join()
        return max(self._peak, self._process.memory_info().rss) - self._before


@pytest.fixture
def watch_growth() -> Iterator[type[Growth]]:
    """Begins to watch; the test ends it."""
    yield Growth
    assert not [each for each in threading.enumerate() if each.name == Growth.__name__]
