"""The Gaussian mechanism at the fold: central differential privacy for sites (DP-FedAvg).

With updates x_i of a model x, whose differences are clipped to the L2 norm C, and n the number of
sites that a round is expected to draw, the next model is::

    x + (1 / n) (sum of clip(x_i - x) + z C N(0, 1))

So each update counts alike, and n stays what it is when sites fail: one site more or less changes
the sum by C at most, and the mean by C / n. That is the fixed-denominator estimator of McMahan et
al. 2018 (arXiv:1710.06963), algorithm 1. Every number is noised, also where no update has it: what
a partial update lacks counts as a difference of zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flstream.aggregation.elements import BLOCK, Array, unit
from flstream.aggregation.noise import NoiseSource
from flstream.aggregation.regions import Region
from flstream.model.layout import Layout


@dataclass(frozen=True)
class GaussianMechanism:
    """What makes the mean of one fold private.

    Attributes:
        clip_norm: Bound of the L2 norm of each update's difference from the model.
        cohort: Number that the sum of differences is divided by.
        noise: Standard deviation of the noise on each number of the mean.
        name: Name of the fold, which decides the noise; of the seed, the round and the fold in it.
    """

    clip_norm: float
    cohort: int
    noise: float
    name: str


class PrivateMean:
    """Makes the mean of a walk's updates private, block by block.

    Args:
        mechanism: The mechanism.
        model: Layout of the model.
    """

    def __init__(self, mechanism: GaussianMechanism, model: Layout) -> None:
        self._mechanism = mechanism
        self._model = model
        self._room = np.empty(BLOCK)
        self._noise = NoiseSource("")
        self._tensor: str | None = None

    def apply(self, region: Region, part: slice, mean: Array, old: Array) -> None:
        """Turn a block of the mean into one of the private mean.

        Args:
            region: Region of floats, all of whose updates have the weight 1.
            part: Block of at most ``BLOCK`` numbers of the region.
            mean: Float64 mean over those who have it, or the old values if nobody has; overwritten.
            old: Float64 values of the model.
        """
        received = region.before + region.carriers.bit_count()
        if 0 < received != self._mechanism.cohort:
            np.subtract(mean, old, out=mean)
            np.multiply(mean, received / self._mechanism.cohort, out=mean)
            np.add(mean, old, out=mean)
        noise = self._room[: len(mean)]
        self._fill(region, part, noise)
        np.multiply(noise, self._mechanism.noise, out=noise)
        np.add(mean, noise, out=mean)

    def _fill(self, region: Region, part: slice, noise: Array) -> None:
        """Write standard normal numbers, keyed by tensor and place in it."""
        size = unit(region.dtype)
        start, stop = region.start + part.start * size, region.start + part.stop * size
        for spec in self._model.overlapping(start, stop):
            first, last = max(start, spec.start), min(stop, spec.stop)
            if spec.name != self._tensor:
                self._tensor = spec.name
                self._noise = NoiseSource(f"{self._mechanism.name}/{spec.name}")
            into = noise[(first - start) // size : (last - start) // size]
            self._noise.fill((first - spec.start) // size, into)
