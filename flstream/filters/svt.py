"""SVT privacy: a noisy choice of changes is shared with noise, by the sparse vector technique.

Li et al. 2019, "Privacy-preserving federated brain tumour segmentation", arXiv:1910.00962, with the
scales of the noise of NVFlare's filter of that name.

There, numbers are tested again and again, each time with fresh noise, until enough have passed. A
number that passes a test with probability p, and is tested at random times, passes first after a
time that is exponentially distributed with rate p. So one draw for each number, E / p with E from
the exponential distribution, gives the order in which they pass, and the first ones are shared.
That takes a pass over the update instead of one for every test, and no memory for who has passed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flstream.filters.block import (
    Block,
    Passage,
    Values,
    block_at,
    blocks_of,
    filter_key,
    numbers_of,
)
from flstream.filters.selection import order_statistics
from flstream.model.random_numbers import Floats, exponentials, laplaces, logarithms

# Beyond it, a probability is so small that no choice depends on how small it is.
_MOST_EXPONENT = 600.0


@dataclass(frozen=True)
class NoisyTest:
    """The test that a number has to pass to be shared.

    Attributes:
        threshold: Absolute change, noise of the number's own included, from which on it passes.
        scale: Scale of that noise.
        most: Largest absolute change that counts.
        steps: Number of steps by which changes are divided.
    """

    threshold: float
    scale: float
    most: float
    steps: float

    def times(self, values: Floats, block: Block) -> Floats:
        """Return when each number would pass: the smaller, the earlier."""
        change = np.minimum(np.abs(values) / self.steps, self.most)
        lacking = (self.threshold - change) / self.scale
        tail = 0.5 * exponentials(-np.minimum(np.abs(lacking), _MOST_EXPONENT))
        chance = np.where(lacking >= 0, tail, 1.0 - tail)
        return -logarithms(block.uniforms("choice")) / chance


@dataclass(frozen=True)
class SVTFilter:
    """Filter of one update.

    Attributes:
        test: Test that a number has to pass.
        last: Time until which numbers that pass are shared.
        noise: Scale of the noise of a shared number, for a step.
    """

    test: NoisyTest
    last: float
    noise: float

    @classmethod
    def of(
        cls,
        values: Values,
        passage: Passage,
        place: int,
        *,
        fraction: float,
        epsilon: float,
        noise_var: float,
        gamma: float,
        tau: float,
    ) -> SVTFilter:
        """Choose the numbers that are shared, in a few passes over the update.

        Args:
            values: The update's differences.
            passage: Its seed, and its number of steps.
            place: Place of the filter among those of its direction.
            fraction: Fraction of the numbers that is shared.
            epsilon: Budget of the choice.
            noise_var: Budget of the shared values.
            gamma: The most that a number changes in a step.
            tau: Threshold of the choice, without its noise.
        """
        count = sum(numbers_of(spec) for spec in values.tensors if spec.shape)
        shared = min(math.ceil(count * fraction), count)
        drawn = float(laplaces(filter_key(passage, place, "threshold"), 0, 1)[0])
        threshold = tau + drawn * gamma * 2 / epsilon
        budget = epsilon * (2 * max(shared, 1)) ** (2 / 3)
        test = NoisyTest(threshold, gamma * 4 * max(shared, 1) / budget, gamma, passage.steps)
        noise = gamma * 2 / noise_var
        if not shared:
            return cls(test, 0.0, noise)

        (last,) = order_statistics(
            lambda: (
                test.times(values.block(spec, index), block_at(spec, index, passage, place))
                for spec, index in blocks_of(values, scalars=False)
            ),
            count,
            [shared - 1],
        )
        return cls(test, last, noise)

    def __call__(self, values: Floats, block: Block) -> Floats:
        """Return the shared changes with their noise, and 0 for the others."""
        if not block.shape:
            return values
        steps, most = self.test.steps, self.test.most
        is_shared = self.test.times(values, block) <= self.last
        noisy = values / steps + self.noise * block.laplaces("noise")
        return np.where(is_shared, np.clip(noisy, -most, most) * steps, 0.0)
