"""Measure what is not sent since the receiver has it: `streaming.reuse = auto` beside `off`.

Without any training, each site adds its own numbers to adapters of 1% of the model's bytes, or to
all of it, of which nothing can be reused. The settings alternate; the final models are compared.

    python benchmarks/reuse.py [--quick] [--only PART]... [--json FILE]

Takes ten minutes, 12 GiB of memory and 4 GiB on disk; with ``--quick``, sizes of an eighth.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from rows import Part, Row, measure_parts

from flstream.bench.cases import BenchPlan, Case
from flstream.bench.measuring import measure
from flstream.units import format_bytes

JOB = Path(__file__).parent / "reuse_job" / "job.conf"
MIB, GIB = 1 << 20, 1 << 30
LINK = ("network={ up = 100 Mbit, down = 100 Mbit, latency = 50 ms }",)
# Most of a model's bytes that move each way in a round, to and from a site, with 1% trained.
MOST_MOVED = 0.02
# Most times as long as without that a round may take in which there is nothing to reuse.
MOST_TIMES = 1.05


def adapters(folder: Path, scale: int) -> Iterator[Row]:
    """Measure rounds in which adapters are trained."""
    yield from compared(folder, "adapters", GIB // scale, 4)


def full(folder: Path, scale: int) -> Iterator[Row]:
    """Measure rounds in which all is trained."""
    yield from compared(folder, "all", GIB // scale, 2)


def adapters_over_links(folder: Path, scale: int) -> Iterator[Row]:
    """Measure rounds in which adapters are trained, over links."""
    yield from compared(folder, "adapters", 48 * MIB // scale, 4, *LINK)


def full_over_links(folder: Path, scale: int) -> Iterator[Row]:
    """Measure rounds in which all is trained, over links."""
    yield from compared(folder, "all", 16 * MIB, 2, *LINK)


def compared(folder: Path, trained: str, size: int, clients: int, *settings: str) -> Iterator[Row]:
    """Measure a round with both settings: what moves each way, and the seconds."""
    same = (f"train.args.size={size}", f"train.args.trained={trained}", *settings)
    cases = [Case(reuse, (f"streaming.reuse={reuse}", *same)) for reuse in ("off", "auto")]
    # Whether there is anything to reuse is asked in the first three rounds, then in every eighth.
    plan = BenchPlan(size, clients, None, cases, 5, job_file=JOB, rounds=6)
    off, auto = measure(plan, folder, lambda line: print(line, file=sys.stderr, flush=True))
    if off.median is None or auto.median is None or off.digest != auto.digest:
        raise SystemExit(f"models differ, or there is none: {off.reason} {auto.reason}")
    what = f"{trained} of {format_bytes(size)} x {clients}{', over links' if settings else ''}"
    most = MOST_MOVED if trained == "adapters" else 1.0
    for way in ("down", "up"):
        moved, whole = (getattr(each.median, f"{way}_bytes") for each in (auto, off))
        share, limit = moved / whole, f"{most:.0%} of the model"
        yield Row(f"moved {way} in a round, {what}", f"{share:.2%}", limit, share / most, most=1.0)
    ours, plain = auto.median.seconds, off.median.seconds
    bound = MOST_TIMES if trained == "all" else None
    yield Row(f"a round, {what}", f"{ours:.2f} s", f"{plain:.2f} s off", ours / plain, most=bound)


PARTS: list[Part] = [adapters, full, adapters_over_links, full_over_links]


if __name__ == "__main__":
    measure_parts(PARTS, "Measure what is not sent since the receiver has it.", 8)
