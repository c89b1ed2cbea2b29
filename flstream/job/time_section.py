"""The section of a run's clock."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from flstream.job.device import exact, product
from flstream.job.fields import Count, Real, Seconds, Section, in_unit
from flstream.job.problems import Problem, RefusedValueError
from flstream.units import format_seconds_exact, parse_seconds

if TYPE_CHECKING:
    from flstream.job.clients_section import ClientsSection


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
    """How much work a task is: examples (those of its answer, one at least), declared, or measured.

    declared takes the units of `flare.work(units)`, which also stand in the place of examples.
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

    @property
    def least_units(self) -> float:
        """Units of work that a task has at least: so no answer comes as its site begins."""
        return 1.0 if self.work == "examples" else 0.0

    def seconds_of(self, units: float) -> Fraction:
        """Return the seconds of so many examples or units on a device of speed 1."""
        return product(units, self.seconds_per_example)


class RoundEnd(NamedTuple):
    """When a training stops waiting for further sites.

    That is ``grace`` seconds after the answer of this number, but not before ``earliest``.

    Attributes:
        answers: Number of the answer, from 1, in the order in which they come.
        grace: Seconds to wait after it.
        earliest: Seconds from the training's beginning, before which it does not end.
    """

    answers: int
    grace: float = 0.0
    earliest: float = 0.0


class StragglersSection(Section):
    """How long a round waits for slow sites, in workflows of rounds.

    It counts time by `time.clock`. What a site has done for a round that did not wait for it is
    left out, and its state stays as it was before. Where a round goes on early, its updates wait in
    files until it is known which of them count.
    """

    policy: Literal["wait_for_all", "cutoff_time", "percentage", "over_selection", "deadline"] = (
        "wait_for_all"
    )
    """When a round goes on: once all its sites have answered or failed, or earlier.

    cutoff_time and percentage are OpenFL's; its minimum_reporting is `clients.min_updates`.
    over_selection samples more sites than a round needs, and takes the first (Bonawitz et al.
    2019, arXiv:1902.01046). deadline is cutoff_time for sites that know of it: `flare.deadline()`
    says how much work a site has the time for.
    """

    straggler_cutoff_time: Seconds | None = None
    """With cutoff_time: how long a round waits (duration), or until min_updates have come."""

    percent_collaborators_needed: Annotated[Real, Field(gt=0, le=1)] | None = None
    """With percentage: the fraction of a round's sites that it waits for; at least min_updates."""

    extra: Count | None = None
    """With over_selection: how many sites more than `clients.per_round` a round samples."""

    deadline: Seconds | None = None
    """With deadline: how long a round waits (duration), or until min_updates have come."""

    @model_validator(mode="after")
    def _has_its_key(self) -> Self:
        own = _KEYS.get(self.policy)
        for policy, key in _KEYS.items():
            value = getattr(self, key)
            if key == own and value is None:
                raise RefusedValueError(Problem(key, "", f"given with policy = {policy}"))
            if key != own and value is not None:
                raise RefusedValueError(Problem(key, str(value), f"left out, or policy = {policy}"))
        return self

    @property
    def is_on(self) -> bool:
        """Whether a round may go on before all sites have answered or failed."""
        return self.policy != "wait_for_all"

    def least(self, clients: ClientsSection, cohort: int) -> int:
        """Return how many sites of a cohort have to send an update."""
        if clients.min_updates is not None:
            return clients.min_updates
        if self.policy == "over_selection":
            return min(cohort, clients.cohort_size)
        return cohort if self.policy == "wait_for_all" else 1

    def end(self, clients: ClientsSection, least: int, cohort: int) -> RoundEnd | None:
        """Return when a training of so many sites ends early; None for never."""
        match self.policy:
            case "cutoff_time":
                return RoundEnd(least, earliest=self.straggler_cutoff_time or 0.0)
            case "deadline":
                return RoundEnd(least, earliest=self.deadline or 0.0)
            case "percentage":
                share = exact(self.percent_collaborators_needed or 1.0)
                return RoundEnd(max(least, math.ceil(share * cohort)))
            case "over_selection":
                return RoundEnd(max(least, min(cohort, clients.cohort_size)))
        wait = clients.wait_after_min
        return None if wait is None else RoundEnd(least, wait)


# The key that each policy has to itself.
_KEYS = {
    "cutoff_time": "straggler_cutoff_time",
    "percentage": "percent_collaborators_needed",
    "over_selection": "extra",
    "deadline": "deadline",
}
