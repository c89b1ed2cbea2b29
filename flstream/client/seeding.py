"""Seeding of the global random number generators."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

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


def generators() -> tuple[Any, ...]:
    """Return the states of the global generators of Python, NumPy, torch, and its devices.

    They are plain values and tensors.
    """
    import torch

    numpy: Any = np.random.get_state()
    name, keys, *place = numpy
    # Without CUDA in use, there is nothing to keep, and asking would take up its memory.
    has_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    of_devices = torch.cuda.get_rng_state_all() if has_cuda else []
    of_numpy = name, torch.from_numpy(keys), *place
    return random.getstate(), of_numpy, torch.get_rng_state(), of_devices


def restore_generators(states: tuple[Any, ...]) -> None:
    """Restore states that :func:`generators` returned."""
    import torch

    python, (name, keys, *place), of_torch, of_devices = states
    random.setstate(python)
    np.random.set_state((name, keys.numpy(), *place))
    torch.set_rng_state(of_torch)
    if of_devices:
        torch.cuda.set_rng_state_all(of_devices)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the global generators at the end of the block."""
    states = generators()
    try:
        yield
    finally:
        restore_generators(states)


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
