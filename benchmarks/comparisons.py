"""Measure rounds with other settings side by side: cases of ``flstream bench``, in turn.

All final models of a comparison must be the same bits.

    python benchmarks/comparisons.py [--scale N] [--only PART]... [--json FILE]

Takes a quarter of an hour, 12 GiB of memory and 4 GiB on disk. The part `engines` needs Ray.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rows import GIB, MIB, Part, Row, measure_parts
from running import compare

from flstream.bench.cases import EXCHANGE
from flstream.units import format_bytes

REUSE = Path(__file__).parent / "reuse_job" / "job.conf"


class Comparison(NamedTuple):
    """A setting with several values, of which the first is what others are compared with.

    Attributes:
        name: name on the command line.
        key: key of the job file.
        values: values of the key.
        size: size of the model in bytes.
        clients: number of clients.
        most: times as long as with the first value that a round may take; None for any.
        job_file: job file.
        trained: what sites of the reuse job train: `adapters` or `all`; empty in another job.
        settings: overrides of all cases.
    """

    name: str
    key: str
    values: Sequence[str]
    size: int
    clients: int
    most: float | None = None
    job_file: Path = EXCHANGE
    trained: str = ""
    settings: tuple[str, ...] = ()


_reuse = partial(Comparison, key="streaming.reuse", values=("off", "auto"), job_file=REUSE)
_LINKS = ("network={ up = 100 Mbit, down = 100 Mbit, latency = 50 ms }",)

COMPARISONS = (
    _reuse("adapters", size=GIB, clients=4, trained="adapters"),
    _reuse("full", size=GIB, clients=2, trained="all", most=1.05),
    _reuse("adapters_over_links", size=48 * MIB, clients=4, trained="adapters", settings=_LINKS),
    _reuse("full_over_links", size=16 * MIB, clients=2, trained="all", most=1.05, settings=_LINKS),
    Comparison("engines", "engine.type", ("local", "ray"), 256 * MIB, 2, most=2.5),
)


def measured(folder: Path, scale: int, comparison: Comparison) -> Iterator[Row]:
    """Measure a round with each value: seconds, the server's memory, and what moves."""
    name, key, values, size, clients, most, job_file, trained, settings = comparison
    size = max(size // scale, 16 * MIB) if trained else size // scale
    same = (f"train.args.size={size}", f"train.args.trained={trained}") if trained else ()
    cases = {value: (f"{key}={value}", *same, *settings) for value in values}
    # Whether there is anything to reuse is asked in the first three rounds, then in every eighth.
    figures = compare(
        cases, folder, size, clients, repeat=5, job_file=job_file, rounds=6, same_bits=True
    )
    first, *others = figures.items()
    for value, ours in others:
        what = f"{key} = {value}, {name.replace('_', ' ')}, {format_bytes(size)} x {clients}"
        yield Row(f"a round, {what}", ours.seconds, "s", first[1].seconds, first[0], most=most)
        server, plain = ours.server_over_idle, first[1].server_over_idle
        yield Row(f"server over idle, {what}", server, "bytes", plain, first[0])
        for way in ("down", "up") if trained else ():
            share = getattr(ours, f"{way}_bytes") / getattr(first[1], f"{way}_bytes")
            limit = 0.02 if trained == "adapters" else 1.0
            yield Row(f"moved {way}, {what}", share, "of the model", limit, most=1)


def _part(comparison: Comparison) -> Part:
    part = partial(measured, comparison=comparison)
    part.__name__ = comparison.name  # type: ignore[attr-defined]
    return part


PARTS: list[Part] = [_part(comparison) for comparison in COMPARISONS]


if __name__ == "__main__":
    measure_parts(PARTS, "Measure rounds with other settings side by side.")
