"""Sampling of a round's sites, and seeds of their tasks."""

from __future__ import annotations

import random
from collections.abc import Sequence

from flstream.errors import WorkflowError
from flstream.text import brief_names


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
