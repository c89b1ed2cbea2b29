"""The sites of a task: drawn, seeded, and each with the state that it begins with."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from flstream.errors import WorkflowError
from flstream.runs.site_states import StateVersion
from flstream.text import brief_names
from flstream.worker.messages import SiteTask


def sample_sites(sites: Sequence[str], count: int, seed: int, round_number: int) -> list[str]:
    """Draw sites without replacement, by the seed and the round alone.

    Returns:
        ``count`` names, or all if there are no more, in the order of ``sites``, which is the order
        in which updates are folded.
    """
    # A string seeds through SHA-512: neighbouring rounds and seeds have nothing in common.
    generator = random.Random(f"flstream/sites/{seed}/{round_number}")
    drawn = set(generator.sample(list(sites), min(count, len(sites))))
    return [site for site in sites if site in drawn]


def draw_sites(sites: Sequence[str], share: float, seed: int, round_number: int) -> list[str]:
    """Draw each site by itself with the same probability, by the seed and the round alone.

    Returns:
        Names, in the order of ``sites``; there may be none.
    """
    return [
        site
        for site in sites
        if random.Random(f"flstream/draw/{seed}/{round_number}/{site}").random() < share
    ]


def site_seed(seed: int, site: str, round_number: int, kind: str, ordinal: int = 0) -> int:
    """The seed of one site's task in one round, a number of 63 bits."""
    again = f"/{ordinal}" if ordinal else ""
    text = f"flstream/task/{seed}/{site}/{round_number}/{kind}{again}"
    return random.Random(text).getrandbits(63)


def check_sites(method: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Refuse names that a workflow gives which are no sites of the job, or stand there twice."""
    sites, seen = set(known), set[str]()
    for name in names:
        if name not in sites:
            raise WorkflowError(
                f"run.{method}() was given {name!r}, which is no site of the job; "
                f"its sites are {brief_names(list(known))} (run.all_sites)"
            )
        if name in seen:
            raise WorkflowError(f"run.{method}() was given {name} twice; name each site once")
        seen.add(name)


SeedKind = Literal["train", "evaluate", "submit_model"]
"""What a task is, as far as its random numbers go."""


class SiteTasks:
    """Makes the parts of tasks, and follows the states that sites have left."""

    def __init__(self, seed: int, sites: Sequence[str]) -> None:
        self._seed = seed
        self._indices = {site: index for index, site in enumerate(sites)}
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
            index = self._indices[site]
            tasks[site] = SiteTask(site, index, seed, self._states.get(site))
        return tasks

    def up_to_date(self, tasks: Mapping[str, SiteTask]) -> Mapping[str, SiteTask]:
        """The parts of a task that is begun now, after others may have changed sites' states."""
        return with_states(tasks, self._states)

    def left(self, states: Mapping[str, StateVersion | None]) -> None:
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
    return {
        site: SiteTask(site, task.index, task.seed, states.get(site))
        for site, task in tasks.items()
    }
