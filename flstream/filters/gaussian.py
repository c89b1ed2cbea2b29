"""Gaussian noise: a normal random number is added to each number."""

from __future__ import annotations

from dataclasses import dataclass

from flstream.filters.block import Block
from flstream.model.random_numbers import Floats


@dataclass(frozen=True)
class GaussianFilter:
    """Filter of any model.

    Attributes:
        sigma: Standard deviation of the noise.
    """

    sigma: float

    def __call__(self, values: Floats, block: Block) -> Floats:
        """Return the numbers with their noise."""
        values += self.sigma * block.normals()
        return values
