"""Models sent once and received once, by processes that are there for many such runs.

Sender and receivers are joined by socket pairs. A run tells what is sent, to how many receivers,
and into what they receive it; what came of it is bytes a second, peaks of memory and numbers of
requests.
"""

from __future__ import annotations

import socket
import statistics
import time
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from measure import Link, together

from flstream.bench.drain import drain
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
from flstream.transport.pipe import PipeChannel

DEFAULTS = StreamSettings()
CHUNK = DEFAULTS.chunk_size
REPEAT = 5
# Seconds after which a run has failed.
PATIENCE = 600.0

Into = Literal["bare", "scratch", "existing memory", "new memory", "file"]


class Model(NamedTuple):
    """A model to send: so many tensors of so many bytes each, in memory or in a sparse file."""

    tensors: int
    each: int
    path: Path | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return self.tensors * self.each

    def make(self) -> Source:
        """The model as something to offer. Its file stays; in memory every page is touched."""
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
        return FileSource(self.path)


class Run(NamedTuple):
    """One model sent once, to the first so many receivers at once.

    Attributes:
        label: runs with the same label are repeats of each other.
        model: what is sent.
        receivers: how many receive it.
        into: what each receives it into; ``bare`` is a socket with nothing around the bytes.
        request_size: bytes a request covers.
    """

    label: str
    model: Model
    receivers: int = 1
    into: Into = "scratch"
    request_size: int = DEFAULTS.request_size


class Sent(NamedTuple):
    """What the sender saw: its peak of RSS over idle, and the fetch requests of each run."""

    over_idle: int
    requests: list[int]


class Received(NamedTuple):
    """What a receiver saw: its peak of RSS over idle, and when its runs began and ended."""

    over_idle: int
    spans: dict[int, tuple[float, float]]


class Measured(NamedTuple):
    """What came of a list of runs.

    Attributes:
        rates: bytes a second of each run, of all its receivers together, by label.
        sent: what the sender saw.
        received: what each receiver saw.
    """

    rates: dict[str, list[float]]
    sent: Sent
    received: list[Received]

    def rate(self, label: str) -> float:
        """The median rate of the runs with a label but for the first, which warmed up."""
        rates = self.rates[label]
        return statistics.median(rates[1:] or rates)


def measure(runs: list[Run], folder: Path) -> Measured:
    """Do the runs in order, with the same processes throughout."""
    count = max(run.receivers for run in runs)
    sent, received = together(send, receive, count, runs, folder)
    rates: dict[str, list[float]] = {}
    for number, run in enumerate(runs):
        spans = [each.spans[number] for each in received if number in each.spans]
        seconds = max(ended for _, ended in spans) - min(began for began, _ in spans)
        rates.setdefault(run.label, []).append(run.model.nbytes * len(spans) / seconds)
    return Measured(rates, sent, received)


def send(links: list[Link], runs: list[Run], _folder: Path) -> Sent:
    """Hold the models, and send each when its turn comes."""
    models = {model: model.make() for model in dict.fromkeys(run.model for run in runs)}
    requests = []
    idle = own_rss()
    with DownloadService() as service:
        for link in links:
            link.bare.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            service.attach(PipeChannel(link.data, link.receiver), link.receiver)
        for number, run in enumerate(runs):
            chosen = links[: run.receivers]
            ref = service.offer(models[run.model], [link.receiver for link in chosen])
            for link in chosen:
                link.control.send((number, ref.token))
            if run.into == "bare":
                send_bare(models[run.model], links[0].bare)
                ref.abort("it was sent without")
            else:
                outcome = ref.wait(PATIENCE)
                assert outcome.ok, outcome.reason
            for link in chosen:
                link.control.recv()  # its clock has stopped
            requests.append(sum(delivery.requests for delivery in ref.deliveries.values()))
        over_idle = own_peak_rss() - idle
        for link in links:
            link.control.send(None)
    return Sent(over_idle, requests)


def send_bare(source: Source, sock: socket.socket) -> None:
    """Send a body with nothing around it."""
    scratch = Scratch()
    for start, stop in source.layout.ranges(CHUNK):
        for view in source.views(start, stop, scratch):
            sock.sendall(view)


def receive(link: Link, runs: list[Run], folder: Path) -> Received:
    """Take in every run that the sender announces."""
    receiver = Receiver(PipeChannel(link.data, "sender"), "sender")
    spans: dict[int, tuple[float, float]] = {}
    memory: dict[Model, MemoryBody] = {}
    buffer = Scratch()
    idle = own_rss()
    while (announced := link.control.recv()) is not None:
        number, token = announced
        began = time.monotonic()
        receive_one(runs[number], link, receiver, token, folder, memory, buffer)
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
    """Take in one run."""
    settings = DEFAULTS._replace(request_size=run.request_size)
    match run.into:
        case "bare":
            drain(link.bare, run.model.nbytes, buffer.take(CHUNK))
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
            status, _ = download_arrays(receiver, token, settings)
            assert status.ok, status.reason
        case "file":
            path = folder / f"{link.receiver}.safetensors"
            status, _ = download_file(receiver, token, path, settings)
            path.unlink()
            assert status.ok, status.reason


def alternating(*runs: Run, repeat: int = REPEAT) -> list[Run]:
    """The runs in turn: once to warm up, and as often again as is told."""
    return [run for _ in range(repeat + 1) for run in runs]
