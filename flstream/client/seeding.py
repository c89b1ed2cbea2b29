"""Seeding, in one place."""

from __future__ import annotations

import random
from functools import cache

import numpy as np


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, NumPy (by its last 32 bits) and torch."""
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    if _has_accelerator():
        torch.manual_seed(seed)
    else:
        # All that torch.manual_seed() does here, but for formatting a stack trace for each kind
        # of device that might be initialised later: 30 times as long as all the rest.
        torch.default_generator.manual_seed(seed)


@cache
def _has_accelerator() -> bool:
    import torch

    return torch.accelerator.is_available()
