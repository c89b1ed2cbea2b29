"""Attackers: processes of their own at the other ends of a service's channels."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import Queue

import psutil
import pytest

from flstream.streaming.service import DownloadService
from flstream.transport.sockets import SocketChannel
from flstream.transport.tcp import TcpListener, dial

SCRIPT = Path(__file__).with_name("attack.py")


class Attacker:
    """A process that attacks; it says a line at a time, and waits for one in between."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def says(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()


class Attackers:
    """A service, and what attacks it or its receivers."""

    def __init__(self, stack: ExitStack, *, over_tcp: bool) -> None:
        self.service = stack.enter_context(DownloadService())
        self._stack = stack
        self._over_tcp = over_tcp

    def start(
        self, receiver: str, attack: str, token: bytes, *args: int, lends: bool = False
    ) -> Attacker:
        """Attach a channel whose other end is in a process that attacks."""
        if self._over_tcp:
            channel, theirs = self._connected(receiver)
        else:
            ours, theirs = socket.socketpair()
            channel = SocketChannel(ours, receiver, lends=lends)
        self.service.attach(channel, receiver)
        return self._start(theirs, attack, token, *args)

    def _connected(self, peer: str) -> tuple[SocketChannel, socket.socket]:
        """This process's end of an authenticated connection, and the socket of the other one."""
        accepted: Queue[SocketChannel] = Queue()
        with TcpListener("127.0.0.1:0", lambda channel, _: accepted.put(channel)) as listener:
            dialled = dial(listener.address, listener.admit(peer), "attacked")
            channel = accepted.get(timeout=10)
        theirs = socket.socket(fileno=os.dup(dialled.fileno()))
        dialled.close()
        return channel, theirs

    def _start(self, theirs: socket.socket, attack: str, token: bytes, *args: int) -> Attacker:
        words = [sys.executable, str(SCRIPT), str(theirs.fileno()), attack, token.hex()]
        process = subprocess.Popen(
            [*words, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            self._stack.callback(pipe.close)
        return Attacker(process)


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.nightly)], ids=["pair", "tcp"])
def attackers(request: pytest.FixtureRequest) -> Iterator[Attackers]:
    with ExitStack() as stack:
        yield Attackers(stack, over_tcp=request.param)


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
