"""Each site's own part of a task: the seed of its random numbers, and the state it begins with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec.structs import replace

from flstream.runs.results import StateVersion
from flstream.server.sampling import site_seed
from flstream.worker.messages import SiteTask

SeedKind = Literal["train", "evaluate", "submit_model"]
"""What a task is, as far as its random numbers go."""


class SiteTasks:
    """Makes the parts of tasks, and follows the states that sites have left.

    Args:
        seed: Seed of the job.
        numbers: The number of each site in their fixed order, from 0, by its name.
    """

    def __init__(self, seed: int, numbers: Mapping[str, int]) -> None:
        self._seed = seed
        self._numbers = numbers
        self._states: dict[str, StateVersion] = {}
        # How many tasks of a kind a site has had in the current round.
        self._counts: dict[tuple[str, SeedKind], int] = {}

    def begin_round(self) -> None:
        """Count the tasks of sites anew."""
        self._counts.clear()

    def new(self, kind: SeedKind, sites: Iterable[str], number: int) -> Mapping[str, SiteTask]:
        """The parts of a new task, by site."""
        tasks = {}
        for site in sites:
            ordinal = self._counts.get((site, kind), 0)
            self._counts[site, kind] = ordinal + 1
            seed = site_seed(self._seed, site, number, kind, ordinal)
            tasks[site] = SiteTask(site, self._numbers[site], seed, self._states.get(site))
        return tasks

    def up_to_date(self, tasks: Mapping[str, SiteTask]) -> Mapping[str, SiteTask]:
        """The parts of a task that is begun now, after others may have changed sites' states."""
        return with_states(tasks, self._states)

    def set_states(self, states: Mapping[str, StateVersion | None]) -> None:
        """Take the versions of their states that sites have left.

        Args:
            states: The versions, by site; None for an empty state, as after a task that came to
                nothing.
        """
        for site, state in states.items():
            self._states.pop(site, None)
            if state is not None:
                self._states[site] = state


def with_states(
    tasks: Mapping[str, SiteTask], states: Mapping[str, StateVersion]
) -> Mapping[str, SiteTask]:
    """The parts of a task, with the states that sites begin with; empty ones for others."""
    return {site: replace(task, state=states.get(site)) for site, task in tasks.items()}
