"""Downloads between a sender and its receivers, processes that live for a list of runs.

The processes are connected by socket pairs, with and without direct reads, and over TCP. A run has
a model, a number of receivers and a kind of sink; its results are bytes a second, peaks of memory
and numbers of requests.
"""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from flstream.model.checkpoint import FileSource
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.model.source import Scratch, Source, views_of
from flstream.streaming.api import download_file, download_tensors
from flstream.streaming.download import RemoteSource
from flstream.streaming.receiver import Receiver
from flstream.streaming.service import DownloadService
from flstream.streaming.settings import StreamSettings
from flstream.telemetry.memory import own_peak_rss, own_rss
from flstream.transport.channel import Channel

DEFAULTS = StreamSettings()
CHUNK = DEFAULTS.chunk_size
REPEAT = 5
PATIENCE = 600.0  # seconds after which a run has failed

Way = Literal["pair", "direct", "tcp"]
Into = Literal["bare", "scratch", "existing memory", "new memory", "file"]


class Link(NamedTuple):
    """One process's ends of the connections between a sender and a receiver."""

    receiver: str  # name of the receiver
    control: Any  # connection for control messages: tokens, and when to begin
    # For downloads over each way; then for bytes without a protocol.
    sockets: Sequence[socket.socket]

    def bare(self, run: Run) -> socket.socket:
        """Return the socket of a run without a protocol."""
        return self.sockets[-1 if run.way == "tcp" else -2]

    def channels(self, peer: str) -> dict[Way, Channel]:
        """Return the channels to a peer."""
        pair, direct, tcp, *_ = self.sockets
        return {
            "pair": Channel(pair, peer),
            "direct": Channel(direct, peer, direct=True),
            "tcp": Channel(tcp, peer, beats=True),
        }


class Model(NamedTuple):
    """A model to send."""

    tensors: int  # number of tensors
    size: int  # size of each tensor in bytes
    path: Path | None = None  # path of a sparse file with the model; None for a model in memory

    @property
    def nbytes(self) -> int:
        """Size of the model in bytes."""
        return self.tensors * self.size

    def make(self) -> Source:
        """Create the model as a source. A file is kept; in memory every page is touched."""
        names = [f"t{number:05d}" for number in range(self.tensors)]
        if self.path is None:
            values = (number % 251 for number in range(self.tensors))
            arrays = (np.full(self.size, value, np.uint8) for value in values)
            return MemoryBody.of(dict(zip(names, arrays, strict=True)))
        if not self.path.exists():
            header = Layout.of((name, "U8", (self.size,)) for name in names).plain_header
            with self.path.open("wb") as file:
                file.write(header)
                file.truncate(len(header) + self.nbytes)
        return FileSource(self.path)


class Run(NamedTuple):
    """A model sent once to one or more receivers at a time."""

    label: str  # name of the measurement; runs with the same label are repetitions
    model: Model  # model to send
    receivers: int = 1  # number of receivers
    into: Into = "scratch"  # kind of sink of each receiver; ``bare`` is a socket without a protocol
    way: Way = "pair"  # over a socket pair, by direct reads beside one, or over TCP on the loopback


class Sent(NamedTuple):
    """Measurements of the sender: peak RSS over idle, and of each run requests and its end."""

    over_idle: int
    requests: list[int]
    settled: list[float]


class Received(NamedTuple):
    """Measurements of a receiver: peak RSS over idle, and begin and end of its runs by number."""

    over_idle: int
    spans: dict[int, tuple[float, float]]


class Measured(NamedTuple):
    """Results of a list of runs."""

    # Bytes a second of each run, over all its receivers together, by label.
    rates: dict[str, list[float]]
    sent: Sent  # measurements of the sender
    received: list[Received]  # measurements of each receiver

    def rate(self, label: str) -> float:
        """Return the median rate of a label's runs without the first, which warms up."""
        rates = self.rates[label]
        return statistics.median(rates[1:] or rates)


def alternating(*runs: Run, repeat: int = REPEAT) -> list[Run]:
    """Repeat runs in turn: once to warm up, and ``repeat`` times more."""
    return [run for _ in range(repeat + 1) for run in runs]


def measure(runs: list[Run], folder: Path) -> Measured:
    """Run all runs in order, with the same processes throughout.

    Raises:
        EOFError: A process failed; its traceback is on standard error.
    """
    links = [_linked(f"receiver-{n}") for n in range(max(run.receivers for run in runs))]
    with ExitStack() as stack:
        answers = [spawned(stack, _send, [ours for ours, _ in links], runs)]
        answers += [spawned(stack, _receive, theirs, runs, folder) for _, theirs in links]
        # An end that stays open here would keep a process waiting for a peer that has died.
        for pair in links:
            for link in pair:
                for end in (link.control, *link.sockets):
                    end.close()
        sent, *received = [answer.recv() for answer in answers]
    rates: dict[str, list[float]] = {}
    for number, run in enumerate(runs):
        spans = [one.spans[number] for one in received if number in one.spans]
        seconds = max(ended for _, ended in spans) - min(began for began, _ in spans)
        rates.setdefault(run.label, []).append(run.model.nbytes * len(spans) / seconds)
    return Measured(rates, sent, received)


def spawned(stack: ExitStack, function: Callable[..., Any], *args: Any) -> Connection:
    """Run a function in a new process until the stack ends; return where its result comes.

    The process is spawned, not forked, so that it inherits no memory.
    """
    context = multiprocessing.get_context("spawn")
    answer, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, function, *args), daemon=True)
    process.start()
    stack.callback(process.join)
    stack.callback(answer.close)
    theirs.close()
    return answer


def _answer(answer: Connection, function: Callable[..., Any], *args: Any) -> None:
    answer.send(function(*args))


def _linked(name: str) -> tuple[Link, Link]:
    control, end = multiprocessing.Pipe()
    pairs = [socket.socketpair(), socket.socketpair(), _tcp_pair()]
    pairs += [socket.socketpair(), _tcp_pair()]
    ours, theirs = zip(*pairs, strict=True)
    return Link(name, control, ours), Link(name, end, theirs)


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Connect two sockets over the loopback, as both ends of an authenticated channel are."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    for sock in (ours, theirs):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, theirs


def _send(links: list[Link], runs: list[Run]) -> Sent:
    """Run the sender: make all models, and send that of each run."""
    models = {model: model.make() for model in dict.fromkeys(run.model for run in runs)}
    requests, settled = [], []
    idle = own_rss()
    with DownloadService() as service:
        for link in links:
            link.sockets[-2].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            for channel in link.channels(link.receiver).values():
                service.attach(channel, link.receiver)
        for number, run in enumerate(runs):
            chosen = links[: run.receivers]
            ref = service.offer(models[run.model], [link.receiver for link in chosen])
            for link in chosen:
                link.control.send((number, ref.token))
            if run.into == "bare":
                _send_bare(models[run.model], chosen[0].bare(run))
                ref.abort("it was sent without")
            else:
                outcome = ref.wait(PATIENCE)
                assert outcome.ok, outcome.reason
            settled.append(time.monotonic())
            for link in chosen:
                link.control.recv()  # the receiver has all of it
            requests.append(sum(delivery.requests for delivery in ref.deliveries.values()))
        # The kernel counts the peak a little late, so it may lie below the value read at idle.
        over_idle = max(own_peak_rss() - idle, 0)
        for link in links:
            link.control.send(None)
    return Sent(over_idle, requests, settled)


def _send_bare(source: Source, sock: socket.socket) -> None:
    scratch = Scratch()
    for start, stop in source.layout.ranges(CHUNK):
        for view in views_of(source, start, stop, scratch):
            sock.sendall(view)


def _drain(sock: socket.socket, size: int, buffer: memoryview) -> None:
    while size:
        count = sock.recv_into(buffer, min(len(buffer), size))
        assert count, f"{size} bytes did not come"
        size -= count


def _receive(link: Link, runs: list[Run], folder: Path) -> Received:
    """Run a receiver: receive the model of every run that the sender announces."""
    channels = link.channels("sender")
    receivers = {way: Receiver(channel, "sender") for way, channel in channels.items()}
    spans: dict[int, tuple[float, float]] = {}
    bodies: dict[Model, MemoryBody] = {}
    path, buffer = folder / f"{link.receiver}.safetensors", Scratch()

    def existing(layout: Layout) -> MemoryBody:
        if run.model not in bodies:
            bodies[run.model] = MemoryBody.allocate(layout, "numpy")
        return bodies[run.model]

    idle = own_rss()
    while (announced := link.control.recv()) is not None:
        number, token = announced
        began = time.monotonic()
        run = runs[number]
        receiver, status = receivers[run.way], None
        match run.into:
            case "bare":
                _drain(link.bare(run), run.model.nbytes, buffer.take(CHUNK))
            case "scratch":
                remote = RemoteSource(receiver, token, DEFAULTS)
                for start, stop in remote.layout.ranges(CHUNK):
                    remote.read(start, stop, buffer.take(stop - start))
                remote.close()
            case "new memory":
                status, _ = download_tensors(receiver, token, framework="numpy")
            case "existing memory":
                with RemoteSource(receiver, token, DEFAULTS) as remote:
                    remote.deliver(existing(remote.layout))
            case "file":
                status, _ = download_file(receiver, token, path)
                path.unlink()
        assert status is None or status.ok, status.reason
        spans[number] = began, time.monotonic()
        link.control.send("done")
    return Received(max(own_peak_rss() - idle, 0), spans)
