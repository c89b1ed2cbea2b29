"""Seeded random weights and updates that are as hard to encode as real ones.

Weights are normal numbers with a scale for each row, as trained ones are, and the first row of a
tensor is near 1, as norms are. An update is small, the larger the larger a row is, and has heavy
tails: a quotient of normal numbers has them. It is added to whatever model a site has received, and
does not depend on it, so that two runs differ by what was lost on the way and by nothing else.

Run as a script, it is the client of such a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from zlib import crc32

import numpy as np

import flstream.client as flare

Array = np.ndarray[Any, Any]

WIDTH = 1024
"""Numbers of a row."""

SEED = 7
"""Seed of all numbers, so that every bench has the same."""

# Rows that are made at a time: 1 MiB.
_STEP = 256
# A change is this part of its row's scale, but for the tail, which ends where few are.
_CHANGE, _TAIL_END = 1e-3, 0.02
# Streams of random numbers of one tensor.
_SCALES, _WEIGHTS, _CHANGES = 0, 1, 2


def row_scales(random: np.random.Generator, rows: int) -> Array:
    """Draw the scale of each row: an array of ``(rows, 1)``, float32."""
    drawn = random.standard_normal((rows, 1), np.float32)
    return np.asarray(0.02 * np.exp(0.3 * drawn))


def weights(random: np.random.Generator, scales: Array, shape: tuple[int, int]) -> Array:
    """Draw the weights of rows with these scales, of a shape, float32."""
    return np.asarray(random.standard_normal(shape, np.float32) * scales)


def changes(random: np.random.Generator, scales: Array, shape: tuple[int, int]) -> Array:
    """Draw the changes of weights of rows with these scales, of a shape, float32."""
    tail = random.standard_normal(shape, np.float32)
    tail /= np.abs(random.standard_normal(shape, np.float32)) + np.float32(_TAIL_END)
    return np.asarray(tail * scales * _CHANGE)


def build(size: int, tensors: int | None = None) -> dict[str, Any]:
    """Return the tensors of a model of float32, by name.

    Args:
        size: Bytes of all tensors together, a multiple of 4.
        tensors: Number of tensors, of about equal size; None for 8.
    """
    import torch

    count = tensors or 8
    share, more = divmod(size // 4, count)
    model = {}
    for index in range(count):
        numbers = np.empty(share + (index < more), np.float32)
        for part, scales, random in _parts(f"tensor.{index}", numbers, _WEIGHTS):
            part[:] = weights(random, scales, (len(scales), WIDTH)).reshape(-1)[: len(part)]
        if share > 32 * WIDTH:  # it would be too much of a shorter tensor
            numbers[:WIDTH] += 1
        model[f"tensor.{index}"] = torch.from_numpy(numbers)
    return model


def add_update(name: str, tensor: Array, site: int, round_number: int) -> None:
    """Add a site's update of a round to a flat tensor, in place, 1 MiB at a time."""
    for part, scales, random in _parts(name, tensor, _CHANGES, site, round_number):
        part += changes(random, scales, (len(scales), WIDTH)).reshape(-1)[: len(part)]


def _parts(
    name: str, numbers: Array, *stream: int
) -> Iterator[tuple[Array, Array, np.random.Generator]]:
    """Yield a tensor's rows a step at a time, with scales and a random stream."""
    tensor = crc32(name.encode())
    scaling = np.random.default_rng([SEED, tensor, _SCALES])
    random = np.random.default_rng([SEED, tensor, *stream])
    for start in range(0, len(numbers), _STEP * WIDTH):
        part = numbers[start : start + _STEP * WIDTH]
        yield part, row_scales(scaling, -(-len(part) // WIDTH)), random


def main() -> None:
    """Serve task after task: add an update to every weight, in place."""
    flare.init()
    site = int(flare.get_site_name().removeprefix("site-"))
    while flare.is_running():
        model = flare.receive()
        assert model is not None  # a running job has sent one, with its round
        assert model.current_round is not None
        params: Any = model.params
        for name, tensor in params.items():
            add_update(name, tensor.numpy().reshape(-1), site, model.current_round)
        flare.send(flare.FLModel(params=params))


if __name__ == "__main__":
    main()
