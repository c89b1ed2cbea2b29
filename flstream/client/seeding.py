"""Seeding of the global random number generators."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch.

    Args:
        seed: The seed; NumPy gets its lowest 32 bits.
    """
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    if _has_accelerator():
        torch.manual_seed(seed)
    else:
        # Without an accelerator, torch.manual_seed() does the same, but takes 30 times as long: it
        # formats a stack trace for each kind of device that might be initialised later.
        torch.default_generator.manual_seed(seed)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the global generators at the end of the block."""
    import torch

    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def own_seed(seed: int) -> int:
    """Return the seed of a site's work on its own model, from the task's seed."""
    return random.Random(f"flstream/own/{seed}").getrandbits(63)


def start_seed(seed: int, site: str) -> int:
    """Return the seed of draws before a script's first task, a number of 63 bits.

    Args:
        seed: Seed of the job.
        site: Name of the site; empty for what sites share.
    """
    return random.Random(f"flstream/start/{seed}/{site}").getrandbits(63)


@cache
def _has_accelerator() -> bool:
    import torch

    return torch.accelerator.is_available()
