"""Measure rounds with other settings side by side: cases of ``flstream bench``, in turn.

All final models of a comparison must be the same bits.

    python benchmarks/comparisons.py [--scale N] [--only PART]... [--json FILE]

Takes a quarter of an hour, 12 GiB of memory and 4 GiB on disk. The parts `engines...` need Ray.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rows import MIB, Part, Row, measure_parts
from running import compare, rows_of_rounds

from flstream.bench.cases import EXCHANGE
from flstream.units import format_bytes

REUSE = Path(__file__).parent / "reuse_job" / "job.conf"


class Comparison(NamedTuple):
    """A key with two values, of which the first is what the other is compared with.

    The model has a size in bytes. A round may take `most` times as long as with the first value.
    Sites of the reuse job train `adapters` or `all`; those of the exchange nothing.
    """

    key: str
    values: tuple[str, str]
    size: int
    clients: int
    most: float | None = None
    trained: str = ""
    settings: tuple[str, ...] = ()


_reuse = partial(Comparison, "streaming.reuse", ("off", "auto"))
_engines = partial(Comparison, "engine.type", ("local", "ray"), 256 * MIB, 2)
_LINKS = ("network={ up = 100 Mbit, down = 100 Mbit, latency = 50 ms }",)

COMPARISONS = {
    "adapters_over_links": _reuse(48 * MIB, 4, trained="adapters", settings=_LINKS),
    "full_over_links": _reuse(16 * MIB, 2, 1.05, "all", settings=_LINKS),
    "engines": _engines(1.6, settings=("checkpoints.keep=1",)),
    "engines_keeping_all": _engines(2.0, settings=("checkpoints.keep=all",)),
}


def measured(folder: Path, scale: int, comparison: Comparison) -> Iterator[Row]:
    """Measure a round with each value: seconds, the server's memory, and what moves."""
    key, values, size, clients, most, trained, settings = comparison
    size = max(size // scale, 16 * MIB) if trained else size // scale
    same = (f"train.args.size={size}", f"train.args.trained={trained}") if trained else ()
    cases = {f"{key} = {value}": (f"{key}={value}", *same, *settings) for value in values}
    job_file = REUSE if trained else EXCHANGE
    figures = compare(
        cases, folder, size, clients, repeat=5, job_file=job_file, rounds=6, same_bits=True
    )
    what = f"{trained or 'all'} trained, {format_bytes(size)} x {clients}, "
    yield from rows_of_rounds(figures, what, most)
    first, ours = figures.values()
    for way in ("down", "up") if trained else ():
        share = getattr(ours, f"{way}_bytes") / getattr(first, f"{way}_bytes")
        limit = 0.02 if trained == "adapters" else 1.0
        yield Row(f"moved {way}, {what}{[*figures][1]}", share, "of the model", limit, most=1)


PARTS: Mapping[str, Part] = {
    name: partial(measured, comparison=comparison) for name, comparison in COMPARISONS.items()
}


if __name__ == "__main__":
    measure_parts(PARTS, "Measure rounds with other settings side by side.")
