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
from typing import Any, TextIO

if __name__ == "__main__":
    from flstream.model.checkpoint import FileSource
    from flstream.streaming import Channel, DownloadService, Receiver, StreamSettings, api


class Zygote:
    """The process that the others are forked from."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs:
            words = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(words, pass_fds=[theirs.fileno()])
        self.pid = self._process.pid

    def start(self, role: str, end: socket.socket, **how: Any) -> TextIO:
        """Start a process that has an end of a connection; return what it reports on."""
        ours, theirs = socket.socketpair()
        with ours, theirs, end:
            data = json.dumps({"role": role, **how}).encode()
            socket.send_fds(self._ours, [data], [end.fileno(), theirs.fileno()])
            return ours.makefile()

    def close(self) -> None:
        """End it; all of its children have ended."""
        self._ours.close()
        self._process.wait()


def report_of(reports: TextIO) -> Any:
    """The next report of a process; None once it is gone."""
    return json.loads(reports.readline() or "null")


def _say(reports: socket.socket, *what: Any) -> None:
    reports.sendall(json.dumps(what).encode() + b"\n")


def _send(end: socket.socket, reports: socket.socket, path: str, dies_at: int | None) -> None:
    """Offer a file, and be killed once more than so many bytes of it are read."""

    class Dying(FileSource):
        def read(self, start: int, stop: int, into: memoryview) -> None:
            if dies_at is not None and stop > dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            super().read(start, stop, into)

    with DownloadService() as service:
        ref = service.offer(Dying(Path(path)), ["site-1"])
        service.attach(Channel(end, "site-1"), "site-1")
        _say(reports, ref.id)
        outcome = ref.wait(30)
    _say(reports, outcome.status, outcome.reason)


def _receive(
    end: socket.socket,
    reports: socket.socket,
    token: str,
    path: str,
    dies_at: int | None,
    chunk_size: int,
) -> None:
    """Download a file, and be killed once so many bytes of it are there."""

    def die(done: int, _: int) -> None:
        if dies_at is not None and done > dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    receiver = Receiver(Channel(end, "server"), "server")
    how = {"settings": StreamSettings(chunk_size=chunk_size), "on_progress": die, "resume": True}
    status, _ = api.download_file(receiver, token, path, optional=True, **how)
    _say(reports, status.code, status.reason)


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
            how = json.loads(data)
            run = {"send": _send, "receive": _receive}[how.pop("role")]
            try:
                run(end, reports, **how)
            finally:
                os._exit(0)
        end.close()
        reports.close()
    with suppress(ChildProcessError):
        os.wait()  # which returns once the last child has ended


if __name__ == "__main__":
    main()
