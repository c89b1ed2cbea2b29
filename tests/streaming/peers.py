"""What the other process does in a test. It imports no torch, so that it is up soon."""

import os
import signal
import socket
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from flstream.errors import FlstreamError
from flstream.model.body import Scratch
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.layout import Layout
from flstream.streaming.download import download
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.service import DownloadService
from flstream.transport.sockets import SocketChannel


class DyingSource(FileSource):
    """A file whose reader is killed, as by the kernel for want of memory, at a byte of it."""

    def __init__(self, path: Path, at: int) -> None:
        super().__init__(path)
        self._at = at

    def views(self, start: int, stop: int, scratch: Scratch) -> list[memoryview]:
        if stop > self._at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().views(start, stop, scratch)


class DyingSink(FileSink):
    """A file whose writer is killed once it has some bytes."""

    def __init__(self, path: Path, layout: Layout, at: int) -> None:
        super().__init__(path, layout)
        self._at = at

    def views(self, start: int, stop: int) -> list[memoryview]:
        if stop > self._at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().views(start, stop)


def offer_file(end: socket.socket, reports: Connection, path: Path, dies_at: int | None) -> None:
    """Offer a file to the other process; report the token, and then how the ref ended."""
    source = FileSource(path) if dies_at is None else DyingSource(path, dies_at)
    with DownloadService() as service:
        ref = service.offer(source, ["receiver"])
        service.attach(SocketChannel(end, "receiver"), "receiver")
        reports.send(ref.token)
        outcome = ref.wait(30)
    reports.send((outcome.status, outcome.reason))


def fetch_files(
    end: socket.socket,
    reports: Connection,
    tokens: Sequence[bytes],
    settings: StreamSettings,
    folder: Path,
    dies_at: int | None,
) -> None:
    """Fetch bodies from the other process into files; report the cost or the error of each."""
    receiver = Receiver(SocketChannel(end, "sender"), "sender")
    for number, token in enumerate(tokens):
        path = folder / f"received-{number}"

        def sink_for(layout: Layout, path: Path = path) -> FileSink:
            return FileSink(path, layout) if dies_at is None else DyingSink(path, layout, dies_at)

        try:
            sink, stats = download(receiver, token, settings, sink_for)
            with sink:
                sink.finish()
        except FlstreamError as error:
            reports.send((type(error).__name__, str(error)))
        else:
            reports.send((stats.bytes, stats.requests, stats.chunks))


def stay_silent(end: socket.socket, reports: Connection) -> None:
    """Hold the pipe open, until the other process has seen enough."""
    reports.recv()
    end.close()
