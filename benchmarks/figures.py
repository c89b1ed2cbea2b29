"""Costs that the figures of rows stand for: of two, the larger one is the worse."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import NamedTuple

MIB = float(1 << 20)
# Seconds below which noise of the system is a large part of a figure: such a row is only reported.
MILLISECONDS = 0.1

# A number, and its unit: "0.351 ms", "1,934 tasks/s", "+0.0012 MiB/round", "0.034 s, 1.9 GB/s".
_FIGURE = re.compile(r"([+-]?[\d,]*\.?\d+) ([A-Za-z/]+)")


class Unit(NamedTuple):
    """A unit of figures.

    Attributes:
        quantity: Name of the quantity.
        factor: Size of the unit in the quantity's base unit.
        least: Smallest cost that is distinguished from smaller ones, in the base unit.
        is_rate: Whether more is better, so that the cost is the inverse.
    """

    quantity: str
    factor: float = 1.0
    least: float = 0.0
    is_rate: bool = False


UNITS = {
    "s": Unit("seconds", 1.0, 1e-6),
    "ms": Unit("seconds", 1e-3, 1e-6),
    "GB/s": Unit("rate", is_rate=True),
    "tasks/s": Unit("rate", is_rate=True),
    # The kernel counts the pages of a thread in batches of 64, so peaks of RSS are right to some
    # hundred KiB; and a process may need none at all.
    "B": Unit("bytes", 1.0, 4 * MIB),
    "KiB": Unit("bytes", 1024.0, 4 * MIB),
    "MiB": Unit("bytes", MIB, 4 * MIB),
    "GiB": Unit("bytes", 1024 * MIB, 4 * MIB),
    "requests": Unit("count", 1.0, 1.0),
    # A slope around nothing: below what a row of it may have, no two are told apart.
    "MiB/round": Unit("growth", 1.0, 0.05),
}


def cost(figure: str) -> tuple[float, str]:
    """Return the cost of a figure, in base units, and the name of its quantity.

    Raises:
        ValueError: it has no number with a known unit.
    """
    found = _FIGURE.match(figure)
    unit = UNITS.get(found[2]) if found else None
    if found is None or unit is None:
        raise ValueError(f"the figure {figure!r} has no number with one of {', '.join(UNITS)}")
    value = float(found[1].replace(",", "")) * unit.factor
    return (1 / value if unit.is_rate else max(value, unit.least)), unit.quantity


class Comparison(NamedTuple):
    """A row that both checkouts have measured in pairs.

    Attributes:
        what: Description of the measurement.
        here: Figures of this checkout, in the order of the pairs.
        there: Figures of the other one.
        bound: Largest acceptable median ratio.
    """

    what: str
    here: Sequence[str]
    there: Sequence[str]
    bound: float

    @property
    def ratios(self) -> list[float]:
        """Cost here divided by cost there, for each pair."""
        pairs = zip(self.here, self.there, strict=True)
        return [cost(here)[0] / cost(there)[0] for here, there in pairs]

    @property
    def is_milliseconds(self) -> bool:
        """Whether it is a time so short that the bound does not apply."""
        costs = [cost(figure) for figure in (*self.here, *self.there)]
        is_time = all(quantity == "seconds" for _, quantity in costs)
        return is_time and statistics.median(value for value, _ in costs) < MILLISECONDS

    @property
    def is_worse(self) -> bool:
        """Whether the median ratio is above the bound, and the bound applies."""
        # As it is printed, so that no line says that 1.05 is more than 1.05.
        median = round(statistics.median(self.ratios), 3)
        return not self.is_milliseconds and median > self.bound

    @property
    def cells(self) -> tuple[str, ...]:
        """Formatted cells: median figures here and there, median and range of ratios, verdict."""
        ratios = self.ratios
        numbers = statistics.median(ratios), min(ratios), max(ratios)
        verdict = "worse" if self.is_worse else "milliseconds" if self.is_milliseconds else ""
        figures = middle(self.here), middle(self.there)
        return self.what, *figures, *(f"{number:.3f}" for number in numbers), verdict


def middle(figures: Sequence[str]) -> str:
    """Return the median figure; of an even number, the worse one of the two in the middle."""
    return sorted(figures, key=lambda figure: cost(figure)[0])[len(figures) // 2]
