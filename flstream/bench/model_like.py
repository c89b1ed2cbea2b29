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
from flstream.model.layout import Layout

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


def build(size: int, tensors: int | None = None) -> WeightsBody:
    """Return the body of a model of float32, whose weights are drawn as it is read.

    Args:
        size: Bytes of all tensors together, a multiple of 4.
        tensors: Number of tensors, of about equal size; None for 8.
    """
    count = tensors or 8
    share, more = divmod(size // 4, count)
    return WeightsBody(
        Layout.of((f"tensor.{index}", "F32", (share + (index < more),)) for index in range(count))
    )


class WeightsBody:
    """Body of weights, 1 MiB of which is in memory; to be read front to back by one thread."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._start, self._part = 0, memoryview(b"")
        self._parts = self._drawn()

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Read the bytes ``[start, stop)``; before the last ones, all are drawn anew."""
        if start < self._start:
            self._start, self._part, self._parts = 0, memoryview(b""), self._drawn()
        while start < stop:
            view = self._part[start - self._start :][: stop - start]
            if not len(view):
                self._start += len(self._part)
                self._part = next(self._parts)
            into[: len(view)] = view
            into, start = into[len(view) :], start + len(view)

    def _drawn(self) -> Iterator[memoryview]:
        shortest = min(spec.nbytes for spec in self.layout.tensors) // 4
        for spec in self.layout.tensors:
            count = spec.nbytes // 4
            for first, scales, random in _parts(spec.name, count, _WEIGHTS):
                numbers = weights(random, scales, (len(scales), WIDTH)).reshape(-1)
                if not first and shortest > 32 * WIDTH:  # it is too much of a shorter one
                    numbers[:WIDTH] += 1
                yield numbers[: count - first].view(np.uint8).data


def add_update(name: str, tensor: Array, site: int, round_number: int) -> None:
    """Add a site's update of a round to a flat tensor, in place, 1 MiB at a time."""
    for first, scales, random in _parts(name, len(tensor), _CHANGES, site, round_number):
        part = tensor[first : first + _STEP * WIDTH]
        part += changes(random, scales, (len(scales), WIDTH)).reshape(-1)[: len(part)]


def _parts(name: str, count: int, *stream: int) -> Iterator[tuple[int, Array, np.random.Generator]]:
    """Yield the first number of each step of a tensor's rows, their scales and a random stream."""
    tensor = crc32(name.encode())
    scaling = np.random.default_rng([SEED, tensor, _SCALES])
    random = np.random.default_rng([SEED, tensor, *stream])
    for first in range(0, count, _STEP * WIDTH):
        rows = -(-min(count - first, _STEP * WIDTH) // WIDTH)
        yield first, row_scales(scaling, rows), random


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
