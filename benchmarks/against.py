"""Compare this checkout with another one, row by row, in pairs that alternate.

    python benchmarks/against.py OTHER [--pairs 7] [--rows PART]... [--scale 8] [--json FILE]

Each part of ``rounds.py`` and ``transfer.py`` is measured here, there, here, there and so on, with
the scripts and the interpreter (``.venv``) of each checkout. Of every row the ratios of the pairs
are printed: their median, the smallest and the largest; above 1, this checkout is the worse one.
The exit status is 1 if a median is above the bound. Rows of milliseconds are printed and not held
to it.

At full size a pair takes about half an hour; ``--scale`` divides the sizes. A part whose name both
scripts have is written ``rounds.growth``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from figures import Comparison
from rows import print_columns

HERE = Path(__file__).resolve().parent.parent
DRIVER = HERE / "benchmarks" / "one_part.py"
SCRIPTS = ("transfer", "rounds")
HEAD = ("what", "here", "there", "median", "min", "max", "")


class Checkout(NamedTuple):
    """A checkout, and the interpreter of its scripts."""

    root: Path
    python: Path

    @classmethod
    def at(cls, root: Path) -> Checkout:
        """Find the interpreter of a checkout: that in its ``.venv``, or else the current one."""
        own = root / ".venv" / "bin" / "python"
        return cls(root, own if own.exists() else Path(sys.executable))

    def ask(self, script: str, *more: str) -> Any:
        """Run ``one_part.py`` on a script of this checkout, and return what it writes.

        Raises:
            SystemExit: it failed.
        """
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "answer.json"
            line = [str(self.python), str(DRIVER), str(self.root), script, str(file), *more]
            environment = {**os.environ, "PYTHONPATH": str(self.root)}
            # Python finds packages in the working directory first.
            done = subprocess.run(
                line, cwd=self.root, env=environment, stdout=sys.stderr, check=False
            )
            if done.returncode:
                print(f"{' '.join(line)} failed, status {done.returncode}", file=sys.stderr)
                sys.exit(2)
            return json.loads(file.read_text())


def chosen_parts(here: Checkout, there: Checkout, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the parts to compare, each as script and name.

    Raises:
        SystemExit: there is no part of a name that was given.
    """
    parts = []
    for script in SCRIPTS:
        theirs = there.ask(script)
        parts += [(script, part) for part in here.ask(script) if part in theirs]
    spelled = [name for script, part in parts for name in (part, f"{script}.{part}")]
    for name in names:
        if name not in spelled:
            print(f"both have no part {name}; there are {', '.join(spelled)}", file=sys.stderr)
            sys.exit(2)
    return [
        (script, part)
        for script, part in parts
        if not names or part in names or f"{script}.{part}" in names
    ]


def compare(
    here: Checkout, there: Checkout, part: tuple[str, str], options: argparse.Namespace
) -> Iterator[Comparison]:
    """Measure a part in pairs, and compare those of its rows that both checkouts have."""
    figures: tuple[dict[str, list[str]], ...] = ({}, {})
    for pair in range(options.pairs):
        print(f"measuring: {'.'.join(part)}, pair {pair + 1}", file=sys.stderr, flush=True)
        for checkout, found in zip((here, there), figures, strict=True):
            for row in checkout.ask(*part, str(options.scale)):
                found.setdefault(row["what"], []).append(row["figure"])
    for what in sorted(figures[0].keys() ^ figures[1].keys()):
        owner = "this" if what in figures[0] else "the other"
        print(f"not compared, as only {owner} checkout has it: {what}")
    for what, ours in figures[0].items():
        if what in figures[1]:
            yield Comparison(what, ours, figures[1][what], options.bound)


def main(options: argparse.Namespace) -> int:
    """Compare, print what came of each part as it is done, and return the exit status."""
    here, there = Checkout.at(HERE), Checkout.at(options.other.resolve())
    done: list[Comparison] = []
    for part in chosen_parts(here, there, options.rows):
        rows = list(compare(here, there, part, options))
        print_columns([HEAD, *(row.cells for row in rows)])
        done += rows
        if options.json is not None:
            records = [{**row._asdict(), "ratios": row.ratios} for row in done]
            options.json.write_text(json.dumps(records, indent=1) + "\n")
    if not done:
        print("the checkouts have no row in common", file=sys.stderr)
        return 2
    worse = [row.what for row in done if row.is_worse]
    reported = sum(row.is_milliseconds for row in done)
    print(f"{len(done)} rows, {reported} of milliseconds; {len(worse)} above {options.bound:g}")
    for what in worse:
        print(f"worse: {what}")
    return 1 if worse else 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description="Compare this checkout with another one.")
    made.add_argument("other", metavar="OTHER", type=Path, help="the other checkout")
    made.add_argument("--pairs", type=int, default=7, help="how often each is measured")
    made.add_argument("--rows", metavar="PART", action="append", default=[], help="only these")
    made.add_argument("--scale", type=int, default=1, help="divisor of all sizes")
    made.add_argument("--bound", type=float, default=1.05, help="largest median ratio allowed")
    made.add_argument("--json", metavar="FILE", type=Path, help="write all figures there")
    return made


if __name__ == "__main__":
    sys.exit(main(parser().parse_args()))
