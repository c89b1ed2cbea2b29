"""The section of a run's clock."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field

from flstream.job.device import exact
from flstream.job.fields import Section, in_unit
from flstream.units import format_seconds_exact, parse_seconds


class TimeSection(Section):
    """The clock by which sites are early or late: that on the wall, or a virtual one.

    docs/clock.md says how long a task takes on the virtual clock, and what a run promises with it.
    """

    clock: Literal["wall", "virtual"] = "wall"
    """Whose time counts: wall (the machine's), or virtual (simulated from the sites' devices).

    With virtual, deadlines, grace periods and the order of answers follow simulated time, and so
    does a run's result: it has the same bits on any machine, with any number of workers.
    """

    work: Literal["examples", "declared", "measured"] = "examples"
    """How much work a task is: the examples of its answer, `flare.work(units)`, or measured.

    measured takes the seconds that training took, which differ from run to run: then a resumed run
    alone has the same bits.
    """

    seconds_per_example: Annotated[
        float,
        Field(gt=0, le=1e6),
        *in_unit(parse_seconds, format_seconds_exact, "a duration above 0, such as 1 ms"),
    ] = 1e-3
    """Seconds of work of one example, or one declared unit, on a device of speed 1 (duration)."""

    @property
    def is_virtual(self) -> bool:
        """Whether time is simulated."""
        return self.clock == "virtual"

    def seconds_of(self, units: float) -> Fraction:
        """Return the seconds of so many examples or units on a device of speed 1."""
        return exact(units) * exact(self.seconds_per_example)
