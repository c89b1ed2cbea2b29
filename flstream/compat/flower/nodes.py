"""Ids of nodes and of runs, which follow from the seed."""

from __future__ import annotations

import random

from flstream.compat.flower.requests import AppPlace

_BITS = 63


def node_id(seed: int, site: str) -> int:
    """Return the id of a site's node."""
    return random.Random(f"flstream/flower/node/{seed}/{site}").getrandbits(_BITS)


def node_ids(place: AppPlace) -> dict[str, int]:
    """Return the ids of all nodes, by site."""
    return {site: node_id(place.seed, site) for site in place.sites}


def run_id(seed: int) -> int:
    """Return the id of a run."""
    return random.Random(f"flstream/flower/run/{seed}").getrandbits(_BITS)
