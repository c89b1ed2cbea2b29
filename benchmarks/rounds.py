"""Measure rounds: start-up, constant memory, seconds against the machine's limits, tiny models.

Every row is a run of the command line tool of its own. Limits are measured beside it: the rate of a
bare socket pair, and the disk's writing and fsync of as many bytes.

    python benchmarks/rounds.py [--scale N] [--only PART]... [--json FILE]

Takes about twenty minutes, 20 GiB of memory and 30 GiB of disk in the current directory.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rows import GIB, MIB, Row, by_name, measure_parts
from running import JOBS, MeasuredRun, run
from streams import Model, Run, measure

from flstream.units import format_bytes

REPEAT = 5  # times that a round and the machine's limits are measured in turn


def exchange(folder: Path, size: int, clients: int, rounds: int = 2, *settings: str) -> MeasuredRun:
    """Run the exchange job, which moves models without training."""
    sizes = f"model.args.size={size}", f"clients.count={clients}", f"rounds={rounds}"
    return run(JOBS / "exchange", folder, *sizes, "checkpoints.keep=1", *settings)


def flat_memory(folder: Path, scale: int) -> Iterator[Row]:
    """Measure the server's memory for several model sizes and numbers of clients and workers."""
    cases = [(256, 4, 4), (1024, 4, 4), (4096, 4, 4), (64, 4, 4), (64, 16, 16), (64, 64, 64)]
    for mebibytes, clients, workers in (*cases, (64, 64, 2)):
        size = mebibytes * MIB // scale
        done = exchange(folder, size, clients, 2, f"clients.parallel={workers}")
        memory = done.summary.memory
        what = f"{format_bytes(size)} model, {clients} clients"
        what += f" in {workers} workers" if workers < clients else ""
        server = memory.server.over_idle
        yield Row(f"server over idle, {what}", server, "bytes", 64 * MIB, most=1)
        if workers == clients:
            largest = max(process.over_idle for process in memory.clients.values())
            limit = size + 48 * MIB
            yield Row(f"largest client over idle, {what}", largest, "bytes", limit, most=1)


def phases(folder: Path, scale: int) -> Iterator[Row]:
    """Measure the seconds of a round against the bare pipe and the bare disk, which alternate."""
    for whole, clients in ((GIB, 2), (512 * MIB, 4)):
        size = whole // scale
        moved, written, bare_moves, bare_writes = [], [], [], []
        for _ in range(REPEAT):
            bare = measure([Run("pipe", Model(1, size), into="bare")] * 4, folder).rate("pipe")
            bare_moves.append(2 * clients * size / bare)
            bare_writes.append(write_seconds(folder, size))
            for steady in exchange(folder, size, clients, 3).summary.rounds[1:]:
                moved.append(steady.download + steady.upload_and_fold)
                written.append(steady.checkpoint)
        for what, ours, bare_seconds, beside, most in (
            ("down, up and fold", moved, bare_moves, "bare pipe", 1.5),
            ("checkpoint", written, bare_writes, "bare write and fsync", 1.3),
        ):
            seconds, limit = statistics.median(ours), statistics.median(bare_seconds)
            name = f"{what}, {format_bytes(size)} x {clients} clients"
            yield Row(name, seconds, "s", limit, beside, most=most)


def write_seconds(folder: Path, size: int) -> float:
    """Return the seconds in which so many bytes are written and durable."""
    piece = np.random.default_rng(0).bytes(2 * MIB)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        began = time.perf_counter()
        for _ in range(max(size // len(piece), 1)):
            file.write(piece)
        os.fsync(file.fileno())
        return time.perf_counter() - began


def virtual_clients(folder: Path, scale: int) -> Iterator[Row]:
    """Measure client tasks a second, with a thousand clients of 18 examples each."""
    settings = f"rounds={100 // scale + 2}", "workflow.args.evaluate_every=0", "checkpoints.keep=1"
    ends = ends_of_rounds(run(JOBS / "virtual", folder, *settings))
    rate = 100 * (len(ends) - 1) / (ends[-1] - ends[0])
    yield Row("1,000 clients, 100 a round, 2 workers", rate, "tasks/s", 2000, least=1)


def fleet(folder: Path, scale: int) -> Iterator[Row]:
    """Measure tasks a second with 100,000 devices on the virtual clock, a thousand at a time."""
    sizes = "clients.count=100000", "clients.per_round=1000", "train.args.epochs=1"
    for kind, tasks, rounds in (("fedavg", 1000, 30), ("fedbuff", 100, 200)):
        args = "evaluate_every=0" + ", buffer_size=100" * (kind == "fedbuff")
        flow = f"workflow={{type={kind}, args{{{args}}}}}"
        done = run(JOBS / "stragglers", folder, *sizes, flow, f"rounds={rounds // scale + 2}")
        ends = ends_of_rounds(done)
        rate = tasks * (len(ends) - 1) / (ends[-1] - ends[0])
        what = f"100,000 devices, 1,000 at a time, {kind}"
        yield Row(what, rate, "tasks/s", 2000, least=1)
        server = done.summary.memory.server.over_idle
        yield Row(f"{what}, server over idle", server, "bytes", 64 * MIB, most=1)


def ends_of_rounds(done: MeasuredRun) -> list[float]:
    """Return the times at which the rounds of a run ended."""
    return [event["time"] for event in done.events if event["kind"] == "round_finished"]


def growth(folder: Path, scale: int) -> Iterator[Row]:
    """Measure the growth of memory with the number of rounds."""
    rounds = 200 // scale
    done = exchange(folder, 16 * MIB, 2, rounds)
    ends = ends_of_rounds(done)
    for process in ("server", "site-1"):
        # The second half of the rounds, since the first ones fill caches and buffers.
        samples = [
            (sample["time"], sample["rss"] / MIB)
            for sample in done.samples
            if sample["process"] == process and ends[rounds // 2] < sample["time"] < ends[-1]
        ]
        times, sizes = np.array(samples).T
        slope = float(np.polyfit(times, sizes, 1)[0]) * (ends[-1] - ends[0]) / (rounds - 1)
        what = f"{process}, growth of RSS over {rounds} rounds of 16 MiB"
        yield Row(what, slope, "MiB/round", 0.05, most=1)


def startup(folder: Path, scale: int) -> Iterator[Row]:
    """Measure start-up beside an interpreter that does nothing, and the import of torch.

    Absolute seconds mean little: the same version took 2.4 s to its first training step on one day
    and 6.9 s on another, on which `import torch` took three times as long, too.
    """
    commands = ("-c", "pass"), ("-m", "flstream", "--help"), ("-c", "import torch")
    seconds: list[list[float]] = []
    # The first of each is left out, since it fills the disk's cache.
    for _ in range(REPEAT + 1):
        done = run(JOBS / "digits", folder, "rounds=1", "clients.count=4")
        first = min(
            event["time"]
            for event in done.events
            if event["kind"] == "site_state" and event["state"] == "training"
        )
        seconds.append([*map(process_seconds, commands), first - done.began])
    bare, helped, imported, step = map(statistics.median, zip(*seconds[1:], strict=True))
    yield Row("flstream --help", helped, "s", bare, "nothing")
    what = "command to first training step, 4 clients"
    yield Row(what, step, "s", imported, "import torch", most=3)


def process_seconds(arguments: Sequence[str]) -> float:
    """Return the seconds of a whole process of Python."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


PARTS = by_name(startup, virtual_clients, fleet, growth, phases, flat_memory)


if __name__ == "__main__":
    measure_parts(PARTS, "Measure rounds.")
