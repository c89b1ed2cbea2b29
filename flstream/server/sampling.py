"""Sampling of a round's sites, and seeds of their tasks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence


def sample_sites(sites: Sequence[str], count: int, seed: int, round_number: int) -> list[str]:
    """Draw sites without replacement, by the seed and the round alone.

    Returns:
        ``count`` names, or all if there are no more, in the order of ``sites``, which is the order
        in which updates are folded.
    """
    return sample_by(round_generator(seed, round_number), sites, count)


def sample_by(generator: random.Random, sites: Sequence[str], count: int) -> list[str]:
    """Draw sites without replacement by a generator; see :func:`sample_sites`."""
    # Of places, so that the cost does not grow with the number of sites.
    return in_order(sites, generator.sample(range(len(sites)), min(count, len(sites))))


def in_order(sites: Sequence[str], places: Iterable[int]) -> list[str]:
    """Return the sites at some places, in the order of ``sites``."""
    return [sites[place] for place in sorted(places)]


def round_generator(seed: int, round_number: int) -> random.Random:
    """Return the generator by which the sites of a round are drawn."""
    # A string seeds through SHA-512: neighbouring rounds and seeds have nothing in common.
    return random.Random(f"flstream/sites/{seed}/{round_number}")


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


# A generator is seeded for each task, as making one for each takes twice as long.
_seeded = random.Random()


def site_seed(seed: int, site: str, round_number: int, kind: str, ordinal: int = 0) -> int:
    """The seed of one site's task in one round, a number of 63 bits."""
    again = f"/{ordinal}" if ordinal else ""
    text = f"flstream/task/{seed}/{site}/{round_number}/{kind}{again}"
    _seeded.seed(text)
    return _seeded.getrandbits(63)
