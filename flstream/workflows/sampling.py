"""Which sites take part in a round."""

from __future__ import annotations

import random
from collections.abc import Sequence


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


def site_seed(seed: int, site: str, round_number: int, kind: str) -> int:
    """The seed of one site's task in one round, a number of 63 bits."""
    return random.Random(f"flstream/task/{seed}/{site}/{round_number}/{kind}").getrandbits(63)
