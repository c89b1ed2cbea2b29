"""Rows of results: the parts of a script that make them, the table, and the JSON file."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import psutil

from flstream.units import format_bytes


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        what: description of the measurement.
        figure: formatted result.
        limit: formatted limit, measured in the same run or set as a target.
        ratio: result divided by the limit.
        least: smallest acceptable ratio; None for no lower bound.
        most: largest acceptable ratio; None for no upper bound.
    """

    what: str
    figure: str
    limit: str
    ratio: float
    least: float | None = None
    most: float | None = None

    @property
    def is_met(self) -> bool:
        """Whether the ratio is acceptable."""
        # Rounded as it is printed, so that a printed 0.80 is not less than 0.8.
        ratio = round(self.ratio, 2)
        return (self.least is None or ratio >= self.least) and (
            self.most is None or ratio <= self.most
        )

    @property
    def cells(self) -> tuple[str, ...]:
        """Formatted cells of the row."""
        bounds = [
            f"{sign} {bound:g}"
            for sign, bound in ((">=", self.least), ("<=", self.most))
            if bound is not None
        ]
        verdict = "" if self.is_met else "missed"
        ratio = f"{self.ratio:.2f}" if round(self.ratio, 2) else f"{self.ratio:.1g}"
        return self.what, self.figure, self.limit, ratio, " ".join(bounds), verdict


def print_table(rows: Iterable[Row]) -> None:
    """Print the rows in columns."""
    head = ("what", "figure", "limit", "ratio", "target", "")
    print_columns([head, *(row.cells for row in rows)])


def print_columns(lines: Sequence[tuple[str, ...]]) -> None:
    """Print lines of cells, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip(), flush=True)


Part = Callable[[Path, int], Iterator[Row]]
"""A measurement: makes its rows, given a scratch folder and a divisor of all sizes."""


def measure_parts(parts: Sequence[Part], description: str, reduction: int) -> None:
    """Read the command line of a script, measure the parts that it names, and print their rows.

    Args:
        parts: Measurements, in the order in which they are made.
        description: First line of ``--help``.
        reduction: Divisor of all sizes with ``--quick``.
    """
    names = [part.__name__ for part in parts]
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help=f"sizes divided by {reduction}")
    parser.add_argument("--only", metavar="PART", action="append", choices=names, default=[])
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the rows there as well")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write a page of them there")
    parser.epilog = "parts: " + ", ".join(names)
    options = parser.parse_args()
    rows: list[tuple[str, Row]] = []
    for part in parts:
        if not options.only or part.__name__ in options.only:
            print(f"measuring: {part.__name__.replace('_', ' ')}", file=sys.stderr, flush=True)
            with scratch_folder() as folder:
                made = part(Path(folder), reduction if options.quick else 1)
                rows += [(part.__name__, row) for row in made]
    print_table(row for _, row in rows)
    if options.markdown is not None:
        options.markdown.write_text(_page(description, [row for _, row in rows]))
    if options.json is not None:
        records = [{"part": name, **row._asdict()} for name, row in rows]
        options.json.write_text(json.dumps(records, indent=1) + "\n")


def _page(description: str, rows: Sequence[Row]) -> str:
    """Return a page with the rows in a Markdown table."""
    title = description.partition(".")[0]
    head = ("what", "figure", "beside", "ratio", "wanted", "")
    memory = format_bytes(psutil.virtual_memory().total)
    machine = f"{os.cpu_count()} cores, {memory} of memory, torch {version('torch')}"
    written = f"Written by `make science` on {date.today()}: {machine}."
    lines = [f"# {title}", "", written, ""]
    table = [head, ("---",) * len(head), *(row.cells for row in rows)]
    lines += [f"| {' | '.join(cells)} |" for cells in table]
    return "\n".join(lines) + "\n"


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """Create a folder for large files in the current directory, since /tmp may be memory."""
    return tempfile.TemporaryDirectory(prefix="flstream-bench-", dir=".")
