"""Compare this checkout with another one, row by row, in pairs that alternate.

    python benchmarks/against.py OTHER [--pairs 7] [--rows PART]... [--scale 8] [--json FILE]

Each part of ``rounds.py`` and ``transfer.py`` is measured here, there, here, there and so on, with
the scripts and the interpreter (``.venv``) of each checkout. Of every row the ratios of the pairs'
costs are printed: their median, the smallest and the largest; above 1, this checkout is the worse
one. The exit status is 1 if a median is above the bound. Rows of less than 0.1 s are printed and
not held to it: noise of the system is a large part of them.

At full size a pair takes about half an hour; ``--scale`` divides the sizes. A part whose name both
scripts have is written ``rounds.growth``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rounds
import transfer
from rows import cost, formatted, print_table

HERE = Path(__file__).resolve().parent.parent
HEADS = ("what", "here", "there", "median", "min", "max", "")
PARTS = [(script.__name__, part) for script in (transfer, rounds) for part in script.PARTS]
MILLISECONDS = {"s": 0.1, "ms": 100.0}
"""Median below which a row is only reported, by unit."""


class Comparison(NamedTuple):
    """A row that both checkouts have measured in pairs."""

    what: str  # description of the measurement
    unit: str  # unit of the figures
    here: Sequence[float]  # figures of this checkout, in the order of the pairs
    there: Sequence[float]  # figures of the other one
    bound: float  # largest acceptable median ratio

    @property
    def ratios(self) -> list[float]:
        """Cost here divided by cost there, for each pair."""
        pairs = zip(self.here, self.there, strict=True)
        return [cost(own, self.unit) / cost(other, self.unit) for own, other in pairs]

    @property
    def verdict(self) -> str:
        """``worse`` if the median ratio is above the bound, ``milliseconds`` if none applies."""
        if statistics.median([*self.here, *self.there]) < MILLISECONDS.get(self.unit, -1e9):
            return "milliseconds"
        # As it is printed, so that no line says that 1.05 is more than 1.05.
        return "worse" if round(statistics.median(self.ratios), 3) > self.bound else ""

    @property
    def cells(self) -> tuple[str, ...]:
        """Formatted cells: median figures here and there, median and range of ratios, verdict."""
        ratios = self.ratios
        figures = (
            formatted(statistics.median(side), self.unit) for side in (self.here, self.there)
        )
        numbers = statistics.median(ratios), min(ratios), max(ratios)
        return self.what, *figures, *(f"{number:.3f}" for number in numbers), self.verdict


def measure(root: Path, script: str, part: str, scale: int) -> list[dict[str, Any]]:
    """Return the rows of a part, measured by a checkout's own script and interpreter.

    Raises:
        SystemExit: The script failed, or has no such part.
    """
    python = root / ".venv" / "bin" / "python"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        line = [str(python if python.exists() else sys.executable), f"benchmarks/{script}.py"]
        line += ["--only", part, "--scale", str(scale), "--json", str(file)]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        done = subprocess.run(line, cwd=root, env=environment, stdout=sys.stderr, check=False)
        if done.returncode:
            print(f"{' '.join(line)} in {root}: exit status {done.returncode}", file=sys.stderr)
            sys.exit(2)
        rows: list[dict[str, Any]] = json.loads(file.read_text())
        return rows


def compare(
    other: Path, part: tuple[str, str], options: argparse.Namespace
) -> Iterator[Comparison]:
    """Measure a part in pairs, and compare those of its rows that both checkouts have."""
    figures: tuple[dict[tuple[str, str], list[float]], ...] = ({}, {})
    for pair in range(options.pairs):
        print(f"measuring: {'.'.join(part)}, pair {pair + 1}", file=sys.stderr, flush=True)
        for root, values in zip((HERE, other), figures, strict=True):
            for row in measure(root, *part, options.scale):
                values.setdefault((row["what"], row["unit"]), []).append(row["value"])
    ours, theirs = figures
    for key in sorted(ours.keys() ^ theirs.keys()):
        owner = "this" if key in ours else "the other"
        print(f"not compared, as only {owner} checkout has it: {key[0]}")
    for what, unit in ours.keys() & theirs.keys():
        yield Comparison(what, unit, ours[what, unit], theirs[what, unit], options.bound)


def main(options: argparse.Namespace) -> int:
    """Compare, print the rows of each part as it is done, and return the exit status."""
    spelled = {name for script, part in PARTS for name in (part, f"{script}.{part}")}
    for name in options.rows:
        if name not in spelled:
            print(f"no part {name}; there are {', '.join(sorted(spelled))}", file=sys.stderr)
            return 2
    done: list[Comparison] = []
    for script, part in PARTS:
        if options.rows and not {part, f"{script}.{part}"} & set(options.rows):
            continue
        rows = list(compare(options.other.resolve(), (script, part), options))
        print_table(HEADS, [row.cells for row in rows])
        done += rows
        if options.json is not None:
            records = [{**row._asdict(), "ratios": row.ratios} for row in done]
            options.json.write_text(json.dumps(records, indent=1) + "\n")
    worse = [row.what for row in done if row.verdict == "worse"]
    print(f"{len(done)} rows; {len(worse)} above {options.bound:g}")
    for what in worse:
        print(f"worse: {what}")
    return 1 if worse else 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Compare this checkout with another one.")
    parser.add_argument("other", metavar="OTHER", type=Path, help="the other checkout")
    parser.add_argument("--pairs", type=int, default=7, help="how often each is measured")
    parser.add_argument("--rows", metavar="PART", action="append", default=[], help="only these")
    parser.add_argument("--scale", type=int, default=1, help="divisor of all sizes")
    parser.add_argument("--bound", type=float, default=1.05, help="largest median ratio allowed")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main(parse()))
