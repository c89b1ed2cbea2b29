"""Rows of results: their units, the table, and the command line of a script that measures them."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

from flstream.report.table import Column, Table
from flstream.report.table import Row as TableRow
from flstream.telemetry.machine import machine_facts
from flstream.units import format_bytes

MIB, GIB = 1 << 20, 1 << 30
HEADS = ("what", "figure", "beside", "ratio", "wanted", "")


RATES = ("", "GB/s", "tasks/s")
"""Units of which more is better; without a name it is an accuracy."""

LEAST = {
    "s": 1e-6,
    "ms": 1e-3,
    # The kernel counts the pages of a thread in batches of 64, so peaks of RSS are right to some
    # hundred KiB; and a process may need none at all.
    "bytes": 4.0 * MIB,
    "of the model": 1e-4,
    "requests": 1.0,
    "rounds": 1.0,
    "updates": 1.0,
    # A slope around nothing: below what a row of it may have, no two are told apart.
    "MiB/round": 0.05,
}
"""Smallest costs that are distinguished from smaller ones, by the name of the unit."""


class Row(NamedTuple):
    """A figure, and what it is compared with."""

    what: str  # description of the measurement
    value: float  # the figure, in its unit
    unit: str  # one of :data:`RATES` or :data:`LEAST`
    limit: float  # value measured in the same run, or set as a target, in the same unit
    beside: str = ""  # name of the limit; empty for a target
    # Smallest acceptable ratio of the value to the limit; None for no lower bound.
    least: float | None = None
    most: float | None = None  # largest acceptable ratio; None for no upper bound
    spread: str = ""  # the values of which the figure is the median, as text

    @property
    def ratio(self) -> float:
        """The value divided by the limit."""
        return self.value / self.limit

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
        bounds = ((">=", self.least), ("<=", self.most))
        wanted = " ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)
        return (
            self.what,
            f"{formatted(self.value, self.unit)} {self.spread}".rstrip(),
            f"{formatted(self.limit, self.unit)} {self.beside}".rstrip(),
            f"{self.ratio:.2f}" if round(self.ratio, 2) else f"{self.ratio:.1g}",
            wanted,
            "" if self.is_met else "missed",
        )


def formatted(value: float, unit: str) -> str:
    """Format a value with its unit."""
    if unit == "bytes":
        return format_bytes(max(round(value), 0))
    if unit == "of the model":
        return f"{value:.2%} {unit}"
    return f"{value:,.0f} {unit}".rstrip() if value >= 100 else f"{value:.3g} {unit}".rstrip()


def cost(value: float, unit: str) -> float:
    """Return the cost of a figure: of two, the larger one is the worse."""
    return 1 / value if unit in RATES else max(value, LEAST[unit])


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of formatted cells under their heads."""
    table = Table([Column(head) for head in heads], [TableRow(cells) for cells in rows])
    print("\n".join(table.lines()), flush=True)


Part = Callable[[Path, int], Iterator[Row]]
"""A measurement: makes its rows, given a scratch folder and a divisor of all sizes."""


def markdown_section(part: Part, rows: Sequence[Row]) -> str:
    """Return the figures of a part as a section of Markdown: a line a case, a column a measure.

    Heading and text are from the part's docstring. Rows are named ``measure: case`` or ``measure,
    case``. Of several with one name, the first is shown.
    """
    heading, *text = inspect.cleandoc(part.__doc__ or "").split("\n\n")
    heading = heading.removesuffix(".").removeprefix("Measure ").removeprefix("the ")
    figures: dict[tuple[str, str], str] = {}
    for row in rows:
        measure, colon, case = row.what.partition(": ")
        if not colon:
            measure, _, case = row.what.rpartition(", ")
        missed = "" if row.is_met else " (missed)"
        figures.setdefault((case, measure), row.cells[1] + missed)
    cases, measures = (list(dict.fromkeys(names)) for names in zip(*figures, strict=True))
    table = [[case, *(figures.get((case, each), "") for each in measures)] for case in cases]
    lines = markdown_table(["", *measures], table).splitlines()
    about = ["\n\n".join(text), ""] if text else []
    return "\n".join([f"## {heading[:1].upper()}{heading[1:]}", *about, *lines])


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows of formatted cells as a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def machine() -> str:
    """Return the versions of the libraries, the system and the machine in words."""
    return ", ".join(" ".join(fact) for fact in machine_facts().items())


def by_name(*parts: Callable[[Path, int], Iterator[Row]]) -> dict[str, Part]:
    """Return functions that measure, by their names."""
    return {part.__name__: part for part in parts}


def measure_parts(parts: Mapping[str, Part], description: str) -> None:
    """Read the command line of a script, measure the parts that it names, and print their rows.

    Args:
        parts: Measurements by name, in the order in which they are made.
        description: First line of ``--help``.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--scale", type=int, default=1, help="divisor of all sizes")
    parser.add_argument("--only", metavar="PART", action="append", choices=parts, default=[])
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the rows there as well")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write a page of them there")
    parser.epilog = "parts: " + ", ".join(parts)
    options = parser.parse_args()
    measured: dict[str, list[Row]] = {}
    for name, part in parts.items():
        if not options.only or name in options.only:
            print(f"measuring: {name.replace('_', ' ')}", file=sys.stderr, flush=True)
            # In the current directory, since /tmp may be memory.
            with tempfile.TemporaryDirectory(prefix="flstream-bench-", dir=".") as folder:
                measured[name] = list(part(Path(folder), options.scale))
    rows = [row for part_rows in measured.values() for row in part_rows]
    print_table(HEADS, [row.cells for row in rows])
    if options.markdown is not None:
        written = f"Written by `{Path(sys.argv[0]).name}` on {date.today()}: {machine()}."
        page = [f"# {description.removesuffix('.')}", textwrap.fill(written, 100)]
        page += [markdown_section(parts[name], measured[name]) for name in measured]
        options.markdown.write_text("\n\n".join(page) + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")
