"""Weights and updates that codecs find as hard as real ones, made of seeded random numbers.

Matrices have normal numbers with a scale for each row, as trained weights have, and norms are near
1. An update is small, the larger the larger a row is, and has heavy tails: a quotient of normal
numbers has them. It is added to whatever model a site has received, and does not depend on it, so
that two runs differ by what was lost on the way and by nothing else.

Run as a script, it is the client of such a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from zlib import crc32

import numpy as np

import flstream.client as flare

Array = np.ndarray[Any, Any]

WIDTH = 1024
"""Numbers of a row."""

SEED = 7
"""Seed of all numbers, so that every bench has the same."""

_BLOCKS = 8
# Below so many rows a model has no norms, which would be too much of it.
_ROWS_FOR_NORMS = 256
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
        size: bytes of all tensors together, a multiple of 4.
        tensors: how many tensors of about equal size to make instead of the mix.
    """
    import torch

    model = {}
    for name, shape in shapes(size // 4, tensors).items():
        numbers = np.empty(shape, np.float32)
        for part, scales, random in _parts(name, numbers.reshape(-1), _WEIGHTS):
            drawn = weights(random, scales, (len(scales), WIDTH)).reshape(-1)[: len(part)]
            part[:] = drawn + name.endswith("norm")
        model[name] = torch.from_numpy(numbers)
    return model


def shapes(elements: int, tensors: int | None = None) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes of a model's tensors, by name.

    Args:
        elements: how many numbers the model has.
        tensors: how many tensors of about equal size it has; None for matrices and norms.
    """
    if tensors is not None:
        each, more = divmod(elements, tensors)
        return {f"tensor.{index}": (each + (index < more),) for index in range(tensors)}
    found: dict[str, tuple[int, ...]] = {}
    rows = elements // WIDTH
    norms = _BLOCKS if rows >= _ROWS_FOR_NORMS else 0
    if height := (rows - norms) // _BLOCKS:
        found |= {f"layers.{index}.weight": (height, WIDTH) for index in range(_BLOCKS)}
    found |= {f"layers.{index}.norm": (WIDTH,) for index in range(norms)}
    if left := elements - (height * _BLOCKS + norms) * WIDTH:
        found["head"] = (left,)
    return found


def add_update(name: str, tensor: Array, site: int, round_number: int) -> None:
    """Add a site's update to a tensor, in place, 1 MiB at a time.

    Args:
        name: name of the tensor.
        tensor: its numbers, one-dimensional.
        site: number of the site.
        round_number: number of the round.
    """
    for part, scales, random in _parts(name, tensor, _CHANGES, site, round_number):
        drawn = changes(random, scales, (len(scales), WIDTH)).reshape(-1)[: len(part)]
        np.add(part, drawn, out=part)


def _parts(
    name: str, numbers: Array, *stream: int
) -> Iterator[tuple[Array, Array, np.random.Generator]]:
    """Yield the rows of a tensor a step at a time, with their scales and a random stream."""
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
        # A running job has sent a model, with its round.
        assert model is not None
        assert model.params is not None
        assert model.current_round is not None
        params: Mapping[str, Any] = model.params
        for name, tensor in params.items():
            add_update(name, tensor.numpy().reshape(-1), site, model.current_round)
        flare.send(flare.FLModel(params=params))


if __name__ == "__main__":
    main()
