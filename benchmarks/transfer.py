"""Measure the rate and memory of streaming, against limits measured in the same run.

Sender and receivers are processes of their own, connected by socket pairs, or by TCP over the
loopback. Compared runs alternate, and medians are taken, so that the ratios hold on a noisy
machine. The bare socket pair has neither digests nor requests; a download verifies a digest for
every chunk.

    python benchmarks/transfer.py [--scale N] [--only PART]... [--json FILE]

Takes about two minutes and 4 GiB of disk in the current directory.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from rows import MIB, Row, by_name, measure_parts
from streams import CHUNK, REPEAT, Into, Measured, Model, Run, Way, alternating, measure

from flstream.units import format_bytes

WARM_UPS = 50  # tiny downloads before those that are measured


def one_receiver(folder: Path, scale: int) -> Iterator[Row]:
    """Measure downloads against bare sockets, from the same cold memory and from a file."""
    memory = Model(64, 16 * MIB // scale)
    file = Model(1, 1024 * MIB // scale, folder / "sparse-tcp.safetensors")
    cases: list[tuple[Way, Model, str]] = [
        ("pair", memory, "in 64 tensors"),
        ("direct", memory, "in 64 tensors, read directly"),
        ("direct", file, "from a file, read directly"),
        ("tcp", memory, "in 64 tensors, over TCP"),
        ("tcp", file, "from a file, over TCP"),
    ]
    for way, model, place in cases:
        bare = Run("bare TCP" if way == "tcp" else "bare socket pair", model, into="bare", way=way)
        done = measure(alternating(bare, Run("download", model, way=way)), folder)
        what = f"1 receiver, {format_bytes(model.nbytes)} {place}"
        yield rate_row(done, what, "download", bare.label, 0.8)


def small_tensors(folder: Path, scale: int) -> Iterator[Row]:
    """Measure many small tensors, with layouts known after the first run."""
    small = Model(10_000 // scale, 100 << 10)
    large = Model(1, small.nbytes)
    places: tuple[Into, ...] = ("scratch", "existing memory")
    for into in places:
        runs = alternating(
            Run("one tensor", large, into=into),
            Run("many", small, into=into),
            Run("many, directly", small, into=into, way="direct"),
            Run("bare socket pair", small, into="bare"),
        )
        what = f"{small.tensors:,} tensors of 100 KiB into {into}"
        done = measure(runs, folder)
        yield rate_row(done, what, "many", "one tensor", 0.8)
        yield rate_row(done, f"the same, into {into}", "many", "bare socket pair", 0.8)
        yield rate_row(done, "the same, read directly", "many, directly", "bare socket pair", 0.8)


def four_receivers(folder: Path, scale: int) -> Iterator[Row]:
    """Measure four receivers at once against one."""
    model = Model(64, 16 * MIB // scale)
    runs = alternating(Run("one receiver", model), Run("four", model, receivers=4))
    what = f"4 receivers at once, {format_bytes(model.nbytes)} each"
    yield rate_row(measure(runs, folder), what, "four", "one receiver", 0.9)


def memory_over_idle(folder: Path, scale: int) -> Iterator[Row]:
    """Measure peaks of RSS over idle, with new processes for each download."""
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
        limit = (model.nbytes if into == "new memory" else 0) + 32 * MIB
        sender, receiver = done.sent.over_idle, done.received[0].over_idle
        yield Row(f"sender over idle, {what}", sender, "bytes", 32 * MIB, most=1.0)
        yield Row(f"receiver over idle, {what}", receiver, "bytes", limit, most=1.0)


def rate_row(done: Measured, what: str, label: str, limit: str, least: float) -> Row:
    """Return a row that compares the rates of two labels."""
    return Row(what, done.rate(label) / 1e9, "GB/s", done.rate(limit) / 1e9, limit, least=least)


def growth(folder: Path, scale: int) -> Iterator[Row]:
    """Measure seconds over sizes, beside those of the best size's rate."""
    sizes = [size * MIB // scale for size in (64, 256, 1024, 4096)]
    models = [Model(1, size, folder / f"sparse-{size}.safetensors") for size in sizes]
    runs = [Run(format_bytes(model.nbytes), model) for model in models]
    done = measure(alternating(*runs, repeat=3), folder)
    best = max(done.rate(run.label) for run in runs)
    for run in runs:
        seconds, linear = run.model.nbytes / done.rate(run.label), run.model.nbytes / best
        what = f"time for {run.label} from a file"
        yield Row(what, seconds, "s", linear, "at the best rate", most=1.25)


def tiny(folder: Path, scale: int) -> Iterator[Row]:
    """Measure a download of a 4 KiB tensor, from the call until the sender's ref has settled."""
    count = 1000 // scale
    runs = [Run("tiny", Model(1, 4096), into="new memory")] * (count + WARM_UPS)
    done = measure(runs, folder)
    spans = done.received[0].spans
    seconds = [settled - spans[number][0] for number, settled in enumerate(done.sent.settled)]
    median = statistics.median(seconds[WARM_UPS:]) * 1e3
    yield Row(f"settled cost of 4 KiB, {count:,} times", median, "ms", 0.5, most=1.0)


def histology(folder: Path, scale: int) -> Iterator[Row]:
    """Measure a round with the shape of OpenFL's histology task: 20 tensors, 64 MB, 8 receivers."""
    model = Model(20, 3_200_000 // scale)
    done = measure([Run("default", model, receivers=8, into="new memory")], folder)
    what = f"20 tensors, {model.nbytes / 1e6:g} MB, 8 receivers"
    yield Row(what, done.sent.requests[0], "requests", 8, "one each, OpenFL 160", most=1.0)
    server = done.sent.over_idle
    yield Row("server over idle, the same round", server, "bytes", 64 * MIB, most=1.0)


PARTS = by_name(
    one_receiver, small_tensors, four_receivers, memory_over_idle, growth, tiny, histology
)


if __name__ == "__main__":
    print(f"Medians of {REPEAT}, chunks of {format_bytes(CHUNK)}, every chunk verified.")
    measure_parts(PARTS, "Measure streaming.")
