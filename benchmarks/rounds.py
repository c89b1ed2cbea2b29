"""Measure rounds: start-up, constant memory, seconds against the machine's limits, tiny models.

Every row is a run of the command line tool of its own. Limits are measured beside it: the rate of a
bare socket pair, and the disk's writing and fsync of as many bytes.

    python benchmarks/rounds.py [--quick] [--only PART]... [--json FILE]

Takes about twenty minutes, 20 GiB of memory and 30 GiB of disk in the current directory; with
``--quick``, sizes of an eighth, and fewer rounds.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from rows import Part, Row, measure_parts
from simulating import MeasuredRun, figures_of, run, seconds_to_first_step
from streams import Model, Run, measure

from flstream.bench.cases import BenchPlan, Case
from flstream.units import format_bytes

MIB, GIB = 1 << 20, 1 << 30
# Times that a round and the machine's limits are measured in turn.
REPEAT = 5


def exchange(folder: Path, size: int, clients: int, rounds: int = 2, *settings: str) -> MeasuredRun:
    """Run the exchange job, which moves models without training."""
    sizes = f"model.args.size={size}", f"clients.count={clients}", f"rounds={rounds}"
    return run("exchange", folder, *sizes, "checkpoints.keep=1", *settings)


def over_idle(memory: dict[str, int]) -> int:
    """Return the peak RSS of a process over its RSS after its imports, in bytes."""
    return max(memory["peak_rss"] - memory["idle_rss"], 0)


def flat_memory(folder: Path, scale: int) -> Iterator[Row]:
    """Measure the server's memory for several model sizes and numbers of clients."""
    cases = [(256 * MIB, 4), (GIB, 4), (4 * GIB, 4), (64 * MIB, 4), (64 * MIB, 16), (64 * MIB, 64)]
    for whole, clients in cases:
        size = whole // scale
        done = exchange(folder, size, clients, 2, f"clients.parallel={clients}")
        memory = done.summary["memory"]
        what = f"{format_bytes(size)} model, {clients} clients"
        yield against(f"server over idle, {what}", over_idle(memory["server"]), 64 * MIB)
        largest = max(over_idle(client) for client in memory["clients"].values())
        yield against(f"largest client over idle, {what}", largest, size + 48 * MIB)
    done = exchange(folder, 64 * MIB // scale, 64, 2, "clients.parallel=2")
    what = f"{format_bytes(64 * MIB // scale)} model, 64 clients in 2 workers"
    yield against(
        f"server over idle, {what}", over_idle(done.summary["memory"]["server"]), 64 * MIB
    )


def kinds_of_rounds(
    folder: Path, size: int, kinds: Mapping[str, Sequence[str]], limits: Mapping[str, int]
) -> Iterator[Row]:
    """Measure a round of four clients in several ways, and the server's memory over its idle.

    Args:
        folder: Folder for the runs.
        size: Size of the model in bytes.
        kinds: Settings of each way, by its name; the others are compared with the first.
        limits: Memory in bytes that the server may take, by name, where it is not 64 MiB.
    """
    plan = BenchPlan(
        size, 4, None, [Case(name, tuple(settings)) for name, settings in kinds.items()], 3
    )
    measured = figures_of(plan, folder)
    first = next(iter(kinds))
    for name, figures in measured.items():
        what = f"{format_bytes(size)} x 4, {name}"
        plain, taken = measured[first].seconds, figures.seconds
        yield Row(f"a round, {what}", f"{taken:.2f} s", f"{plain:.2f} s {first}", taken / plain)
        memory = round(figures.server_over_idle)
        yield against(f"server over idle, {what}", memory, limits.get(name, 64 * MIB))


def against(what: str, used: int, limit: int) -> Row:
    """Return a row of memory used against memory allowed, both in bytes."""
    return Row(what, format_bytes(used), format_bytes(limit), used / limit, most=1.0)


def phases(folder: Path, scale: int) -> Iterator[Row]:
    """Measure the seconds of a round against the bare pipe and the bare disk, which alternate.

    Nothing is said of chunks, so these are of the size that the run chooses for the machine.
    """
    for whole, clients in ((GIB, 2), (512 * MIB, 4)):
        size = whole // scale
        moved, kept, bare_moves, bare_writes = [], [], [], []
        for _ in range(REPEAT):
            bare = measure([Run("pipe", Model(1, size), into="bare")] * 4, folder).rate("pipe")
            bare_moves.append(2 * clients * size / bare)
            bare_writes.append(write_seconds(folder, size))
            steady = exchange(folder, size, clients, 3).summary["rounds"][1:]
            moved += [each["download"] + each["upload_and_fold"] for each in steady]
            kept += [each["checkpoint"] for each in steady]
        what = f"{format_bytes(size)} x {clients} clients"
        yield seconds(f"down, up and fold, {what}", moved, bare_moves, "bare pipe", 1.5)
        yield seconds(f"checkpoint, {what}", kept, bare_writes, "bare write and fsync", 1.3)


def write_seconds(folder: Path, size: int) -> float:
    """Return the seconds in which so many bytes are written and durable."""
    piece = np.random.default_rng(0).bytes(2 * MIB)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        began = time.perf_counter()
        for _ in range(size // len(piece)):
            file.write(piece)
        os.fsync(file.fileno())
        return time.perf_counter() - began


def seconds(what: str, ours: list[float], bare: list[float], limit: str, most: float) -> Row:
    """Return a row that compares the medians of two lists of seconds."""
    ours_median, bare_median = statistics.median(ours), statistics.median(bare)
    figures = f"{ours_median:.2f} s", f"{bare_median:.2f} s {limit}"
    return Row(what, *figures, ours_median / bare_median, most=most)


def virtual_clients(folder: Path, scale: int) -> Iterator[Row]:
    """Measure client tasks a second, with a thousand clients of 18 examples each."""
    rounds = 100 // scale + 2
    settings = f"rounds={rounds}", "workflow.args.evaluate_every=0", "checkpoints.keep=1"
    done = run("virtual", folder, *settings)
    ends = [event["time"] for event in done.events if event["kind"] == "round_finished"]
    rate = 100 * (len(ends) - 1) / (ends[-1] - ends[0])
    what = "1,000 clients, 100 a round, 2 workers"
    yield Row(what, f"{rate:,.0f} tasks/s", "2,000 tasks/s", rate / 2000, least=1.0)


def growth(folder: Path, scale: int) -> Iterator[Row]:
    """Measure the growth of memory with the number of rounds."""
    rounds = 200 // scale
    done = exchange(folder, 16 * MIB, 2, rounds)
    finished = [event["time"] for event in done.events if event["kind"] == "round_finished"]
    for process in ("server", "site-1"):
        # The second half of the rounds, since the first ones fill caches and buffers.
        samples = [
            (sample["time"], sample["rss"] / MIB)
            for sample in done.samples
            if sample["process"] == process
            and finished[rounds // 2] < sample["time"] < finished[-1]
        ]
        rounds_a_second = (rounds - 1) / (finished[-1] - finished[0])
        times, sizes = np.array(samples).T
        slope = float(np.polyfit(times, sizes, 1)[0]) / rounds_a_second
        what = f"{process}, growth of RSS over {rounds} rounds of 16 MiB"
        yield Row(what, f"{slope:+.4f} MiB/round", "0.05 MiB/round", slope / 0.05, most=1.0)


def startup(folder: Path, scale: int) -> Iterator[Row]:
    """Measure start-up beside an interpreter that does nothing, and the import of torch.

    Absolute seconds mean little: the same version took 2.4 s to its first training step on one day
    and 6.9 s on another, on which `import torch` took three times as long, too.
    """
    commands = ("-c", "pass"), ("-m", "flstream", "--help"), ("-c", "import torch")
    seconds: list[list[float]] = []
    # The first of each is left out, since it fills the disk's cache.
    for _ in range(REPEAT + 1):
        processes = [process_seconds(*command) for command in commands]
        seconds.append([*processes, seconds_to_first_step(folder, "clients.count=4")])
    bare, helped, imported, step = map(statistics.median, zip(*seconds[1:], strict=True))
    yield Row("flstream --help", f"{helped:.3f} s", f"{bare:.3f} s nothing", helped / bare)
    what, limit = "command to first training step, 4 clients", f"{imported:.2f} s import torch"
    yield Row(what, f"{step:.2f} s", limit, step / imported, most=3.0)


def process_seconds(*arguments: str) -> float:
    """Return the seconds of a whole process of Python."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


PARTS: list[Part] = [
    startup,
    virtual_clients,
    growth,
    phases,
    flat_memory,
]


if __name__ == "__main__":
    measure_parts(PARTS, "Measure rounds.", 8)
