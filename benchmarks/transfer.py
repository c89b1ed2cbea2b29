"""Streaming: how fast, and in how much memory, each against a limit measured in the same run.

Sender and receivers are processes of their own, joined by socket pairs. What is compared
alternates, and medians are taken, so that the ratios hold on a noisy machine. The bare socket pair
checks nothing and asks for nothing; a download verifies a digest for every chunk.

    python benchmarks/transfer.py [--quick]

Takes about two minutes and 4 GiB of disk in the current directory; with ``--quick``, a tenth of the
sizes, for trying it out.
"""

from __future__ import annotations

import argparse
import math
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from measure import Link, Row, print_table, together

from flstream.bench.drain import drain
from flstream.model.body import Scratch, Source
from flstream.model.checkpoint import FileSource
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.streaming.api import (
    add_arrays,
    download_arrays,
    download_file,
    download_tensors,
)
from flstream.streaming.download import download
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.refs import Ref
from flstream.streaming.remote import RemoteSource
from flstream.streaming.service import DownloadService
from flstream.telemetry.memory import own_peak_rss, own_rss
from flstream.transport.pipe import PipeChannel
from flstream.units import format_bytes

DEFAULTS = StreamSettings()
CHUNK = DEFAULTS.chunk_size
MIB = 1 << 20
REPEAT = 5
# Seconds after which a run has failed.
PATIENCE = 600.0
# Tiny downloads that come before those that count.
WARM_UPS = 50
OPENFL_REQUESTS = 160

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

    def held_against(self, what: str, label: str, limit: str, least: float) -> Row:
        """A line that compares two rates."""
        ours, other = self.rate(label), self.rate(limit)
        figures = f"{ours / 1e9:.2f} GB/s", f"{other / 1e9:.2f} GB/s {limit}"
        return Row(what, *figures, ours / other, least=least)


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


def one_receiver(folder: Path, scale: int) -> Iterator[Row]:
    """A download against the bare socket pair, from the same cold memory."""
    model = Model(64, 16 * MIB // scale)
    runs = alternating(Run("bare socket pair", model, into="bare"), Run("download", model))
    what = f"1 receiver, {format_bytes(model.nbytes)} in 64 tensors"
    yield measure(runs, folder).held_against(what, "download", "bare socket pair", 0.8)


def small_tensors(folder: Path, scale: int) -> Iterator[Row]:
    """Many small tensors against one large one."""
    small = Model(10_000 // scale, 100 << 10)
    large = Model(1, small.nbytes)
    places: tuple[Into, ...] = ("scratch", "existing memory")
    for into in places:
        runs = alternating(Run("one tensor", large, into=into), Run("many", small, into=into))
        what = f"{small.tensors:,} tensors of 100 KiB into {into}"
        yield measure(runs, folder).held_against(what, "many", "one tensor", 0.8)


def four_receivers(folder: Path, scale: int) -> Iterator[Row]:
    """Four receivers at once against one."""
    model = Model(64, 16 * MIB // scale)
    runs = alternating(Run("one receiver", model), Run("four", model, receivers=4))
    what = f"4 receivers at once, {format_bytes(model.nbytes)} each"
    yield measure(runs, folder).held_against(what, "four", "one receiver", 0.9)


def memory_over_idle(folder: Path, scale: int) -> Iterator[Row]:
    """Peaks of RSS over idle, with new processes for each download."""
    in_memory = Model(64, 16 * MIB // scale)
    in_file = Model(1, 3072 * MIB // scale, folder / "sparse.safetensors")
    cases: list[tuple[Model, Into]] = [
        (in_memory, "new memory"),
        (in_memory, "file"),
        (in_file, "file"),
    ]
    for model, into in cases:
        done = measure([Run("download", model, into=into)], folder)
        size = format_bytes(model.nbytes)
        what = f"{size} from {'memory' if model.path is None else '1 tensor in a file'} into {into}"
        yield memory_row(f"sender over idle, {what}", done.sent.over_idle, 32 * MIB)
        kept = model.nbytes if into == "new memory" else 0
        over_idle = done.received[0].over_idle
        yield memory_row(f"receiver over idle, {what}", over_idle, kept + 32 * MIB)
    assert in_file.path is not None
    in_file.path.unlink()


def memory_row(what: str, used: int, limit: int) -> Row:
    """A line of memory used against memory allowed."""
    # The kernel counts the peak a little late, so it may lie below what was read at idle.
    used = max(used, 0)
    return Row(what, format_bytes(used), format_bytes(limit), used / limit, most=1.0)


def growth(folder: Path, scale: int) -> Iterator[Row]:
    """Time by size. Where it grows with the bytes alone, the rate is the same for every size."""
    sizes = [size * MIB // scale for size in (64, 256, 1024, 4096)]
    models = [Model(1, size, folder / f"sparse-{size}.safetensors") for size in sizes]
    runs = [Run(format_bytes(model.nbytes), model) for model in models]
    done = measure(alternating(*runs, repeat=3), folder)
    best = max(done.rate(run.label) for run in runs)
    for run in runs:
        rate = done.rate(run.label)
        figure = f"{run.model.nbytes / rate:.3f} s, {rate / 1e9:.2f} GB/s"
        limit = f"{best / 1e9:.2f} GB/s best size"
        yield Row(f"time for {run.label} from a file", figure, limit, rate / best, least=0.8)


def tiny(_folder: Path, scale: int) -> Iterator[Row]:
    """A download of one tensor of 4 KiB, from the call until the sender's ref has settled."""
    count = 1000 // scale + WARM_UPS
    settled, (began,) = together(send_tiny, receive_tiny, 1, count)
    pairs = list(zip(began, settled, strict=True))[WARM_UPS:]
    median = statistics.median(end - begin for begin, end in pairs) * 1e3
    what = f"settled cost of 4 KiB, {len(pairs):,} times"
    yield Row(what, f"{median:.3f} ms", "0.5 ms", median / 0.5, most=1.0)


def send_tiny(links: list[Link], count: int) -> list[float]:
    """Offer a tiny tensor again and again, and return when each ref settled."""
    (link,) = links
    arrays = {"weight": np.zeros(1024, np.float32)}
    settled: dict[bytes, float] = {}

    def note(ref: Ref) -> None:
        settled[ref.token] = time.monotonic()

    with DownloadService() as service:
        service.attach(PipeChannel(link.data, link.receiver), link.receiver)
        for _ in range(count):
            # One at a time, as in use: a service has few refs on offer.
            ref = add_arrays(service, arrays, [link.receiver], note)
            link.control.send(ref.token)
            outcome = ref.wait(PATIENCE)
            assert outcome.ok, outcome.reason
            link.control.recv()
    return list(settled.values())


def receive_tiny(link: Link, count: int) -> list[float]:
    """Download a tiny tensor again and again, and return when each download began."""
    receiver = Receiver(PipeChannel(link.data, "sender"), "sender")
    began = []
    for _ in range(count):
        token = link.control.recv()
        began.append(time.monotonic())
        status, _ = download_tensors(receiver, token)
        assert status.ok, status.reason
        link.control.send("done")
    return began


def histology(folder: Path, scale: int) -> Iterator[Row]:
    """The shape of OpenFL's histology round: 20 tensors, 64 MB, 8 receivers."""
    model = Model(20, 3_200_000 // scale)
    whole = Run("default", model, receivers=8, into="new memory")
    pieces = whole._replace(label="1 MiB", request_size=MIB)
    done = measure([whole, pieces], folder)
    for run, count in zip((whole, pieces), done.sent.requests, strict=True):
        expected = run.receivers * math.ceil(model.nbytes / run.request_size)
        what = f"20 tensors, {model.nbytes / 1e6:g} MB, 8 receivers, request_size "
        what += format_bytes(run.request_size)
        limit = f"{expected} by the formula, OpenFL {OPENFL_REQUESTS}"
        yield Row(what, f"{count} requests", limit, count / expected, least=1.0, most=1.0)
    yield memory_row("server over idle, the same round", done.sent.over_idle, 64 * MIB)


PARTS: list[Callable[[Path, int], Iterator[Row]]] = [
    one_receiver,
    small_tensors,
    four_receivers,
    memory_over_idle,
    growth,
    tiny,
    histology,
]


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for large files, on the disk of the current directory: /tmp may be memory."""
    with tempfile.TemporaryDirectory(prefix="flstream-bench-", dir=".") as name:
        yield Path(name)


def main(quick: bool) -> None:
    """Measure everything, and print one table."""
    rows: list[Row] = []
    for part in PARTS:
        print(f"measuring: {part.__name__.replace('_', ' ')}", file=sys.stderr, flush=True)
        with scratch_folder() as folder:
            rows += part(folder, 10 if quick else 1)
    print(f"Medians of {REPEAT}, chunks of {format_bytes(CHUNK)}, every chunk verified.")
    print_table(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure streaming.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes")
    main(parser.parse_args().quick)
