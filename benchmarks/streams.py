"""Measurement of downloads between a sender and its receivers, which live for many runs.

The processes are connected by socket pairs, and over TCP. A run has a model, a number of receivers
and a kind of sink; its results are bytes a second, peaks of memory and numbers of requests.
"""

from __future__ import annotations

import socket
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from measure import Link, together

from flstream.model.body import Scratch, Source
from flstream.model.checkpoint import FileSource
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.streaming.api import download_arrays, download_file
from flstream.streaming.download import download
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.remote import RemoteSource
from flstream.streaming.service import DownloadService
from flstream.telemetry.memory import own_peak_rss, own_rss
from flstream.transport.sockets import SocketChannel

DEFAULTS = StreamSettings()
CHUNK = DEFAULTS.chunk_size
REPEAT = 5
# Seconds after which a run has failed.
PATIENCE = 600.0

Into = Literal["bare", "scratch", "existing memory", "new memory", "file"]


class Model(NamedTuple):
    """A model to send.

    Attributes:
        tensors: number of tensors.
        each: size of each tensor in bytes.
        path: path of a sparse file with the model; None for a model in memory.
    """

    tensors: int
    each: int
    path: Path | None = None

    @property
    def nbytes(self) -> int:
        """Size of the model in bytes."""
        return self.tensors * self.each

    def make(self) -> Source:
        """Create the model as a source. A file is kept; in memory every page is touched."""
        if self.path is None:
            arrays = {
                f"t{number:05d}": np.full(self.each, number % 251, np.uint8)
                for number in range(self.tensors)
            }
            return MemoryBody.of(arrays)
        if not self.path.exists():
            names = (f"t{number:05d}" for number in range(self.tensors))
            header = Layout.of((name, "U8", (self.each,)) for name in names).plain_header
            with self.path.open("wb") as file:
                file.write(header)
                file.truncate(len(header) + self.nbytes)
        return FileSource(self.path, immutable=True)


class Run(NamedTuple):
    """A model sent once to one or more receivers at a time.

    Attributes:
        label: name of the measurement; runs with the same label are repetitions.
        model: model to send.
        receivers: number of receivers.
        into: kind of sink of each receiver; ``bare`` is a socket without a protocol.
        request_size: bytes that a request covers.
        tcp: whether it goes over TCP on the loopback.
    """

    label: str
    model: Model
    receivers: int = 1
    into: Into = "scratch"
    request_size: int = DEFAULTS.request_size
    tcp: bool = False


class Sent(NamedTuple):
    """Measurements of the sender.

    Attributes:
        over_idle: peak RSS over idle in bytes.
        requests: number of fetch requests of each run.
    """

    over_idle: int
    requests: list[int]


class Received(NamedTuple):
    """Measurements of a receiver.

    Attributes:
        over_idle: peak RSS over idle in bytes.
        spans: beginning and end of its runs by the monotonic clock, by number of the run.
    """

    over_idle: int
    spans: dict[int, tuple[float, float]]


class Measured(NamedTuple):
    """Results of a list of runs.

    Attributes:
        rates: bytes a second of each run, over all its receivers together, by label.
        sent: measurements of the sender.
        received: measurements of each receiver.
    """

    rates: dict[str, list[float]]
    sent: Sent
    received: list[Received]

    def rate(self, label: str) -> float:
        """Return the median rate of a label's runs without the first, which warms up."""
        rates = self.rates[label]
        return statistics.median(rates[1:] or rates)


def measure(runs: list[Run], folder: Path) -> Measured:
    """Run all runs in order, with the same processes throughout."""
    count = max(run.receivers for run in runs)
    sent, received = together(send, receive, count, runs, folder)
    rates: dict[str, list[float]] = {}
    for number, run in enumerate(runs):
        spans = [each.spans[number] for each in received if number in each.spans]
        seconds = max(ended for _, ended in spans) - min(began for began, _ in spans)
        rates.setdefault(run.label, []).append(run.model.nbytes * len(spans) / seconds)
    return Measured(rates, sent, received)


def send(links: list[Link], runs: list[Run], _folder: Path) -> Sent:
    """Run the sender: make all models, and send that of each run."""
    models = {model: model.make() for model in dict.fromkeys(run.model for run in runs)}
    requests = []
    idle = own_rss()
    with DownloadService() as service:
        for link in links:
            link.bare.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            channel = SocketChannel(link.data, link.receiver, lends=True)
            service.attach(channel, link.receiver)
            over_tcp = SocketChannel(link.tcp, link.receiver, beats=True)
            service.attach(over_tcp, link.receiver)
        for number, run in enumerate(runs):
            chosen = links[: run.receivers]
            ref = service.offer(models[run.model], [link.receiver for link in chosen])
            for link in chosen:
                link.control.send((number, ref.token))
            if run.into == "bare":
                send_bare(models[run.model], links[0].bare_tcp if run.tcp else links[0].bare)
                ref.abort("it was sent without")
            else:
                outcome = ref.wait(PATIENCE)
                assert outcome.ok, outcome.reason
            for link in chosen:
                link.control.recv()  # the receiver has all of it
            requests.append(sum(delivery.requests for delivery in ref.deliveries.values()))
        over_idle = own_peak_rss() - idle
        for link in links:
            link.control.send(None)
    return Sent(over_idle, requests)


def send_bare(source: Source, sock: socket.socket) -> None:
    """Send a body without a protocol."""
    scratch = Scratch()
    for start, stop in source.layout.ranges(CHUNK):
        for view in source.views(start, stop, scratch):
            sock.sendall(view)


def drain(sock: socket.socket, size: int, buffer: memoryview) -> None:
    """Read so many bytes without a protocol, and discard them."""
    while size:
        count = sock.recv_into(buffer, min(len(buffer), size))
        assert count, f"{size} bytes did not come"
        size -= count


def receive(link: Link, runs: list[Run], folder: Path) -> Received:
    """Run a receiver: receive the model of every run that the sender announces."""
    receivers = {
        False: Receiver(SocketChannel(link.data, "sender"), "sender"),
        True: Receiver(SocketChannel(link.tcp, "sender", beats=True), "sender"),
    }
    spans: dict[int, tuple[float, float]] = {}
    memory: dict[Model, MemoryBody] = {}
    buffer = Scratch()
    idle = own_rss()
    while (announced := link.control.recv()) is not None:
        number, token = announced
        began = time.monotonic()
        run = runs[number]
        receive_one(run, link, receivers[run.tcp], token, folder, memory, buffer)
        spans[number] = began, time.monotonic()
        link.control.send("done")
    return Received(own_peak_rss() - idle, spans)


def receive_one(
    run: Run,
    link: Link,
    receiver: Receiver,
    token: bytes,
    folder: Path,
    memory: dict[Model, MemoryBody],
    buffer: Scratch,
) -> None:
    """Receive the model of a run into the run's kind of sink."""
    settings = replace(DEFAULTS, request_size=run.request_size)
    match run.into:
        case "bare":
            bare = link.bare_tcp if run.tcp else link.bare
            drain(bare, run.model.nbytes, buffer.take(CHUNK))
        case "scratch":
            remote = RemoteSource(receiver, token, settings)
            for start, stop in remote.layout.ranges(settings.frame_size):
                remote.views(start, stop, buffer)
            remote.close()
        case "existing memory":

            def existing(layout: Layout) -> MemoryBody:
                if run.model not in memory:
                    memory[run.model] = MemoryBody.allocate(layout, "numpy")
                return memory[run.model]

            download(receiver, token, settings, existing)
        case "new memory":
            status, _ = download_arrays(receiver, token, settings=settings)
            assert status.ok, status.reason
        case "file":
            path = folder / f"{link.receiver}.safetensors"
            status, _ = download_file(receiver, token, path, settings=settings)
            path.unlink()
            assert status.ok, status.reason


def alternating(*runs: Run, repeat: int = REPEAT) -> list[Run]:
    """Repeat runs in turn: once to warm up, and ``repeat`` times more."""
    return [run for _ in range(repeat + 1) for run in runs]
