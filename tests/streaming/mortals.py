"""Processes that are killed: each is forked from one that has no torch, so that it is up at once.

python mortals.py DESCRIPTOR
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    from flstream.errors import FlstreamError
    from flstream.model.checkpoint import FileSource
    from flstream.streaming import Channel, Receiver, StreamSettings, api
    from flstream.streaming.service import DownloadService


class Zygote:
    """The process that the others are forked from."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs:
            words = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(words, pass_fds=[theirs.fileno()])
        self.pid = self._process.pid

    def start(self, role: str, end: socket.socket, **how: Any) -> socket.socket:
        """Start a process that has an end of a connection; return the one that it reports on."""
        ours, theirs = socket.socketpair()
        with theirs, end:
            data = json.dumps({"role": role, **how}).encode()
            socket.send_fds(self._ours, [data], [end.fileno(), theirs.fileno()])
        return ours

    def close(self) -> None:
        """End it; all of its children have ended."""
        self._ours.close()
        self._process.wait()


def report_of(ours: socket.socket) -> Any:
    """The next report of a process; None once it is gone."""
    line = b""
    while not line.endswith(b"\n"):
        if not (piece := ours.recv(1)):
            return None
        line += piece
    return json.loads(line)


def _send(end: socket.socket, say: Any, path: str, dies_at: int | None) -> None:
    """Offer a file, and be killed once more than so many bytes of it are read."""

    class Dying(FileSource):
        def read(self, start: int, stop: int, into: memoryview) -> None:
            if dies_at is not None and stop > dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            super().read(start, stop, into)

    with DownloadService() as service:
        ref = service.offer(Dying(Path(path)), ["site-1"])
        service.attach(Channel(end, "site-1"), "site-1")
        say(ref.id)
        outcome = ref.wait(30)
    say([outcome.status, outcome.reason])


def _receive(
    end: socket.socket, say: Any, token: str, path: str, dies_at: int | None, chunk_size: int
) -> None:
    """Download a file, and be killed once so many bytes of it are there."""

    def die(done: int, _: int) -> None:
        if dies_at is not None and done > dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    receiver = Receiver(Channel(end, "server"), "server")
    how = StreamSettings(chunk_size=chunk_size)
    try:
        status, _ = api.download_file(
            receiver, token, path, settings=how, on_progress=die, resume=True
        )
        say([status.code, status.cost.bytes])
    except FlstreamError as error:
        say([type(error).__name__, str(error)])


def _child(data: bytes, end: socket.socket, reports: socket.socket) -> None:
    def say(what: Any) -> None:
        reports.sendall(json.dumps(what).encode() + b"\n")

    how = json.loads(data)
    role = how.pop("role")
    {"send": _send, "receive": _receive}[role](end, say, **how)


def main() -> None:
    """Fork a child for each command."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    while True:
        data, fds, _, _ = socket.recv_fds(control, 1 << 16, 2)
        if not data:
            break
        end, reports = (socket.socket(fileno=fd) for fd in fds)
        if os.fork() == 0:
            control.close()
            try:
                _child(data, end, reports)
            finally:
                os._exit(0)
        end.close()
        reports.close()
    with suppress(ChildProcessError):
        os.wait()  # which returns once the last child has ended


if __name__ == "__main__":
    main()
